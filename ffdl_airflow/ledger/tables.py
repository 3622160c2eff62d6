"""Tables of the ledger. The primary key (stream, seq) of ``events`` is the compare-and-append."""

import sqlalchemy as sa

METADATA = sa.MetaData()
VERSION_TABLE = "ffdl_alembic_version"
HEAD = "0001"
"""Newest migration; a test compares it with the scripts."""

EVENTS = sa.Table(
    "ffdl_events", METADATA,
    sa.Column("stream", sa.String(64), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("v", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer),
    sa.Column("at", sa.String(32), nullable=False),
    sa.Column("recorded_at", sa.String(32), nullable=False),
    sa.Column("source", sa.JSON, nullable=False),
    sa.Column("dedupe", sa.String(128)),
    sa.Column("body", sa.JSON, nullable=False),
    sa.UniqueConstraint("stream", "dedupe", name="ffdl_events_dedupe"),
)  # fmt: skip
JOBS = sa.Table(
    "ffdl_jobs", METADATA,
    sa.Column("job_id", sa.String(64), primary_key=True),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("created_at", sa.String(32), nullable=False),
    sa.Column("updated_at", sa.String(32), nullable=False),
    sa.Column("summary", sa.JSON, nullable=False),
    sa.Column("snapshot", sa.JSON(none_as_null=True)),
)  # fmt: skip
STATUS = sa.Table(
    "ffdl_status", METADATA,
    sa.Column("job_id", sa.String(64), primary_key=True),
    sa.Column("document", sa.JSON, nullable=False),
)  # fmt: skip
META = sa.Table(
    "ffdl_meta", METADATA,
    sa.Column("key", sa.String(32), primary_key=True),
    sa.Column("value", sa.String(128), nullable=False),
)  # fmt: skip
