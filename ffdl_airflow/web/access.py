"""Who may see what: Airflow's own users and rights, asked of its auth manager.

========================  =====================================================================
any page                  a login, and the right to see Airflow's website
a job of a DAG            the right to read that DAG's task instances
the logs of its ranks     the right to read that DAG's task logs
a job of ``ffdl run``     the right to see plugins: no DAG stands for it, this page is a plugin's
========================  =====================================================================

A list has only what its reader may open. Not for: rights of our own; there are none.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, status

Owner = Mapping[str, Any]


class Access:
    """What one user may see. Owners are those of the jobs' rows."""

    def __init__(self, user: BaseUser) -> None:
        self._user = user

    def may_enter(self) -> bool:
        """Whether the user may see any page at all."""
        return self._view(AccessView.WEBSITE)

    def readable(self, owners: Iterable[Owner]) -> Callable[[Owner], bool]:
        """A test for those of ``owners`` whose jobs the user may see. Asks once for each DAG."""
        dag_ids = set(map(dag_of, owners))
        teams = DagModel.get_dag_id_to_team_name_mapping([found for found in dag_ids if found])
        known = {
            dag_id: self._dag(dag_id, DagAccessEntity.TASK_INSTANCE, teams.get(dag_id or ""))
            for dag_id in dag_ids
        }
        return lambda owner: known[dag_of(owner)]

    def may_read(self, owner: Owner) -> bool:
        """Whether the user may see the owner's jobs."""
        return self.readable([owner])(owner)

    def may_read_logs(self, owner: Owner) -> bool:
        """Whether the user may see what the ranks of the owner's jobs print."""
        dag_id = dag_of(owner)
        team = DagModel.get_team_name(dag_id) if dag_id else None
        return self._dag(dag_id, DagAccessEntity.TASK_LOGS, team)

    def _dag(self, dag_id: str | None, entity: DagAccessEntity, team: str | None) -> bool:
        if dag_id is None:
            return self._view(AccessView.PLUGINS)
        return get_auth_manager().is_authorized_dag(
            method="GET", access_entity=entity, user=self._user,
            details=DagDetails(id=dag_id, team_name=team),
        )  # fmt: skip

    def _view(self, view: AccessView) -> bool:
        return get_auth_manager().is_authorized_view(access_view=view, user=self._user)


def dag_of(owner: Owner) -> str | None:
    """The DAG whose task submitted a job; None where none did."""
    return owner.get("dag_id")


def rights(user: GetUserDep) -> Access:
    """The rights of who asks; 401 without a login."""
    return Access(user)


def entered(found: Annotated[Access, Depends(rights)]) -> Access:
    """The same, of one who may see pages at all; else 403."""
    if not found.may_enter():
        raise HTTPException(status.HTTP_403_FORBIDDEN, "you may not see this website")
    return found


AccessDep = Annotated[Access, Depends(entered)]
