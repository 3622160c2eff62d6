"""Events, jobs, live status and the ledger's own identity."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "ffdl_events",
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
    )
    op.create_table(
        "ffdl_jobs",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("updated_at", sa.String(32), nullable=False),
        sa.Column("summary", sa.JSON, nullable=False),
        sa.Column("snapshot", sa.JSON),
    )
    op.create_table(
        "ffdl_status",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_table(
        "ffdl_meta",
        sa.Column("key", sa.String(32), primary_key=True),
        sa.Column("value", sa.String(128), nullable=False),
    )


def downgrade() -> None:
    """Drop them."""
    for table in ("ffdl_meta", "ffdl_status", "ffdl_jobs", "ffdl_events"):
        op.drop_table(table)
