"""Alembic's entry: runs the scripts on the connection that ``ledger.sql`` hands over."""

from alembic import context

from ffdl_airflow.ledger.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
