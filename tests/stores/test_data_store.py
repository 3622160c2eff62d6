"""The DataStore manifest."""

import pytest
from pydantic import ValidationError

from ffdl_airflow.core.data import DataStore
from ffdl_airflow.stores import adapters, base


def manifest(**spec):
    return {"apiVersion": "ffdl.cloud.ibm.com/v1", "kind": "DataStore",
            "metadata": {"name": "mnist"}, "spec": spec}  # fmt: skip


def test_a_full_manifest_is_read_and_gives_a_source_without_secrets():
    store = DataStore.model_validate(manifest(
        type="s3", endpoint="https://minio.ml.svc:9000", bucket="tf_training_data", path="mnist/",
        region="us-east-1", credentials={"secretName": "minio-keys"},
        cachePolicy={"type": "pv", "pvcName": "cache", "mountPath": "/cache"},
    ))  # fmt: skip
    assert store.source("train") == {
        "kind": "s3", "endpoint": "https://minio.ml.svc:9000", "bucket": "tf_training_data",
        "region": "us-east-1", "path": "mnist/train", "secret": "minio-keys",
    }  # fmt: skip
    with pytest.raises(base.NoAdapterError, match="no adapter for s3 in this installation; "
                       "allowed: local") as caught:  # fmt: skip
        adapters.open_store(store.source())
    assert (caught.value.code, caught.value.found) == (base.NO_ADAPTER, "s3")
    assert caught.value.exit_code == 2


def test_local_needs_a_path_and_keeps_to_it():
    store = DataStore.model_validate(manifest(type="local", path="/data/mnist"))
    assert store.source() == {"kind": "local", "path": "/data/mnist"}
    assert store.source("train/x") == {"kind": "local", "path": "/data/mnist/train/x"}
    for bad in ("../other", "/etc", "a/../../b"):
        with pytest.raises(ValueError, match="below the data store"):
            store.source(bad)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"type": "local"}, "type local needs path"),
        ({"type": "s3", "path": "x"}, "type s3 needs bucket"),
        ({"type": "nfs"}, "type nfs needs endpoint and path"),
        ({"type": "ftp", "path": "/x"}, "'local', 's3', 'nfs', 'hdfs' or 'cos'"),
        ({"type": "local", "path": "/x", "pth": 1}, "pth"),
        ({"type": "s3", "bucket": "b", "endpoint": "https://u:p@h"}, "credentials.secretName"),
    ],
)
def test_wrong_manifests_are_refused(spec, words):
    with pytest.raises(ValidationError) as caught:
        DataStore.model_validate(manifest(**spec))
    assert words in str(caught.value)
