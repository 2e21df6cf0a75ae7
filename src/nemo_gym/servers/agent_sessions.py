"""The sessions that an agent server holds open for environment servers.

Everything here may be sent twice: a seed or a close whose answer was lost is answered again, and a seed that comes
after its close does not open what nobody would close. Refusals are 409.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.records.observation_models import AgentObservationBundle
from nemo_gym.servers.agent_session_types import (
    AgentCloseSessionRequest,
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSeedSessionResponse,
    ToolAccess,
)
from nemo_gym.servers.session_types import EpisodeId
from nemo_gym.servers.sessions import SESSION_ID_KEY

AGENT_SESSION_KEY: Final = "agent_session_id"
"""The key of the cookie's session that names the agent session it is bound to."""

_REFUSED = 409
HttpSession = MutableMapping[str, Any]


@dataclass(slots=True, kw_only=True, eq=False)
class AgentSession:
    """One session that is open, and what its agent keeps of it.

    `tool_accesses` are the grants that hold, those of the seed before configured ones of the same name. `state` and
    `activations`, how often it acted, are the agent's own. What `observed` holds and `resources_cookies` are returned
    when the session is closed. `usable` is False while it is set up, and when that failed and the clean-up too: then it
    can only be closed.
    """

    seed: AgentSeedSessionRequest
    tool_accesses: Sequence[ToolAccess] = ()
    activations: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    observed: list[AgentObservationBundle] = field(default_factory=list)
    resources_cookies: dict[str, str] | None = None
    usable: bool = True
    cookies: set[str] = field(default_factory=set)

    def bundle(self) -> AgentObservationBundle | None:
        """Return everything that was observed as one bundle; None when nothing was."""
        if not self.observed:
            return None
        return AgentObservationBundle(
            source=self.observed[0].source,
            records=[record for part in self.observed for record in part.records],
            gaps=[gap for part in self.observed for gap in part.gaps],
        )


class _Closed(NamedTuple):
    at: float
    episode_id: EpisodeId
    answer: AgentCloseSessionResponse


class AgentSessions:
    """Opens, binds and closes sessions; `opened` and `closing` are the agent's own part of it.

    `granted` are the configured grants. For `window_s` after a close its answer is given again, and its id opens
    nothing.
    """

    def __init__(
        self,
        *,
        window_s: float,
        granted: Sequence[ToolAccess],
        opened: Callable[[AgentSession], Awaitable[None]],
        closing: Callable[[AgentSession], Awaitable[AgentObservationBundle | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_s, self._granted, self._clock = window_s, granted, clock
        self._opened, self._closing = opened, closing
        self._open: dict[str, AgentSession] = {}
        self._closed: dict[str, _Closed] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def seed(self, body: AgentSeedSessionRequest, http: HttpSession) -> AgentSeedSessionResponse:
        """Open a session, or find the one that the same body opened, and bind the cookie to it."""
        name = body.agent_session_id
        self._check_cookie(name, http)
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name in self._still_closed():
                raise _refused(f"agent session `{name}` was closed; a new episode needs an id of its own")
            session = self._open.get(name)
            if session is None:
                session = await self._opened_session(body)
            elif session.seed != body:
                raise _refused(f"agent session `{name}` is open, with another body")
            elif not session.usable:
                raise _refused(f"agent session `{name}` could not be set up; it can only be closed")
            session.cookies.add(str(http.get(SESSION_ID_KEY)))
            http[AGENT_SESSION_KEY] = name
            return AgentSeedSessionResponse(agent_session_id=name)

    async def _opened_session(self, body: AgentSeedSessionRequest) -> AgentSession:
        names = {grant.name for grant in body.tool_accesses}
        grants = (*body.tool_accesses, *(grant for grant in self._granted if grant.name not in names))
        session = AgentSession(seed=body, tool_accesses=grants, usable=False)
        self._open[body.agent_session_id] = session
        await self._set_up(session)
        session.usable = True
        return session

    async def _set_up(self, session: AgentSession) -> None:
        try:
            await self._opened(session)
        except BaseException:
            await self._closing(session)  # when this raises too, the session stays, to be closed
            del self._open[session.seed.agent_session_id]
            raise

    async def close(self, body: AgentCloseSessionRequest, http: HttpSession) -> AgentCloseSessionResponse:
        """Close a session and return what it saw; when the agent's own clean-up raises, the session stays."""
        name = body.agent_session_id
        self._check_cookie(name, http)
        async with self._locks.setdefault(name, asyncio.Lock()):
            closed, session = self._still_closed().get(name), self._open.get(name)
            episode = session.seed.episode_id if session else closed.episode_id if closed else body.episode_id
            if episode != body.episode_id:
                raise _refused(f"agent session `{name}` belongs to another episode, `{episode.capture_key}`")
            if session is None and closed is not None:
                return closed.answer
            answer = AgentCloseSessionResponse(agent_session_id=name)
            if session is not None:
                observed = await self._closing(session)
                answer = AgentCloseSessionResponse(
                    agent_session_id=name, agent_observations=observed, resources_cookies=session.resources_cookies
                )
                del self._open[name]
            self._closed[name] = _Closed(self._clock(), episode, answer)
            return answer

    def _check_cookie(self, name: str, http: HttpSession) -> None:
        """Refuse a cookie of another session that is open, or one whose marker is no name."""
        marker = http.get(AGENT_SESSION_KEY, name)
        if marker != name and (not isinstance(marker, str) or marker in self._open):
            raise _refused(f"the cookie belongs to agent session `{str(marker)[:80]}`, not to `{name}`")

    def of(self, http: HttpSession) -> AgentSession | None:
        """Return the session that a request's cookie is bound to, None for a request outside of any."""
        name = http.get(AGENT_SESSION_KEY)
        if name is None:
            return None
        session = self._open.get(name) if isinstance(name, str) else None
        if session is None:
            raise _refused(f"the cookie names agent session `{str(name)[:80]}`, which is not open")
        if not session.usable:
            raise _refused(f"agent session `{name}` is being set up, or could not be; it cannot act")
        if str(http.get(SESSION_ID_KEY)) not in session.cookies:
            raise _refused(f"the cookie is not the one that agent session `{name}` was opened with")
        return session

    def _still_closed(self) -> dict[str, _Closed]:
        """Forget what was closed longer ago than the window; the oldest comes first."""
        oldest = self._clock() - self._window_s
        for name, closed in list(self._closed.items()):
            if closed.at > oldest:
                break
            del self._closed[name]
        return self._closed


class AgentSessionMiddleware:
    """Finds the session of an activation, a path that ends with `ends`, inside of the cookie's session.

    It is `request.state.agent_session` then. A cookie that names no open session is refused.
    """

    def __init__(self, app: ASGIApp, *, sessions: AgentSessions, ends: str) -> None:
        self.app = app
        self._sessions, self._ends = sessions, ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its session where it has one."""
        if (
            scope["type"] == "http"
            and AGENT_SESSION_KEY in scope.get("session", ())
            and scope["path"].endswith(self._ends)
        ):
            try:
                session = self._sessions.of(scope["session"])
            except HTTPException as refusal:
                await JSONResponse({"detail": refusal.detail}, refusal.status_code)(scope, receive, send)
                return
            scope.setdefault("state", {})["agent_session"] = session
        await self.app(scope, receive, send)


def _refused(why: str) -> HTTPException:
    return HTTPException(_REFUSED, why)
