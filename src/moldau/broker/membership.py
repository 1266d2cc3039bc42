"""This node as a member of its cluster: registered, kept alive by heartbeats, unfenced when it has caught up, and gone
in good order.

    leader known -> registered (fenced) -> its own registration read from the log -> logs opened -> unfenced -> ...
    -> controlled shutdown: others lead -> gone

A quorum of one takes the same steps, and takes them at once: its decisions are agreed when they are on disk.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from moldau.broker.errors import StartError
from moldau.cluster import SUPPORTED_FEATURES, Endpoint
from moldau.kernel import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.broker.node import Node

RETRY_MS = 100
# While it is fenced or on its way out, a broker asks more often than it has to.
EAGER_MS = 50
SHUTDOWN_MS_MAX = 30_000
# When a whole cluster is stopped there is no quorum to ask for the last of it.
SHUTDOWN_ASK_MS = 2_000


class Membership:
    def __init__(self, node: Node) -> None:
        self._node = node
        self.epoch = -1
        self._beating: asyncio.Task[None] | None = None
        self._is_unfenced = asyncio.Event()
        self._nudge = asyncio.Event()
        self._is_registering = False
        self._said = ""

    # -- controllers ---------------------------------------------------------------------------------------------------

    async def register_controller(self, endpoints: list[Endpoint]) -> None:
        """Until the log has this incarnation's registration, whoever leads."""
        from moldau.protocol.messages.controller_registration import ControllerRegistrationRequest

        node = self._node
        if self._is_registering:
            return
        self._is_registering = True
        request = ControllerRegistrationRequest(
            controller_id=node.node_id,
            incarnation_id=node.incarnation_id,
            listeners=[ControllerRegistrationRequest.Listener(*each) for each in endpoints],
            features=[
                ControllerRegistrationRequest.Feature(name, each.low, each.high)
                for name, each in SUPPORTED_FEATURES.items()
            ],
        )
        while not node.is_stopping:
            known = node.controller.latest.controllers.get(node.node_id)
            if known is not None and known.incarnation_id == node.incarnation_id:
                return
            try:
                response = await node.channel.ask(request)
                if response.error_code:
                    node.say(f"controller_not_registered error={ErrorCode(response.error_code).name}")
            except KafkaError as error:
                node.say(f"controller_not_registered reason={error.message!r}")
            await node.controller.wait_news(RETRY_MS)

    # -- brokers -------------------------------------------------------------------------------------------------------

    async def register(self, endpoints: list[Endpoint], previous_epoch: int) -> None:
        """Until the controller has taken us in and we have read it in the log. StartError when it never will."""
        from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest

        node = self._node
        timeout_ms = node.settings.integer("initial.broker.registration.timeout.ms")
        until_ms = node.clock.monotonic_ms() + timeout_ms
        request = BrokerRegistrationRequest(
            broker_id=node.node_id,
            cluster_id=node.cluster_id,
            incarnation_id=node.incarnation_id,
            listeners=[BrokerRegistrationRequest.Listener(*each) for each in endpoints],
            features=[
                BrokerRegistrationRequest.Feature(name, each.low, each.high)
                for name, each in SUPPORTED_FEATURES.items()
            ],
            rack=node.settings.text("broker.rack") or None,
            log_dirs=node.directory_ids,
            previous_broker_epoch=previous_epoch,
        )
        said: str | None = ""
        while True:
            left_ms = until_ms - node.clock.monotonic_ms()
            if left_ms <= 0:
                raise StartError(f"the broker could not register within {timeout_ms} ms: {said}")
            try:
                response = await node.channel.ask(request, timeout_ms=left_ms)
                error = ErrorCode(response.error_code)
            except KafkaError as refusal:
                said = refusal.message
                continue
            if error is ErrorCode.NONE:
                self.epoch = response.broker_epoch
                break
            if error is ErrorCode.UNSUPPORTED_VERSION:
                raise StartError(
                    "the controller refused this broker: the cluster has agreed on feature levels that this version"
                    " does not serve; `moldau cluster describe` shows them"
                )
            if error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION):
                raise StartError(
                    f"the controller refused this broker: {error.name}; its cluster is not {node.cluster_id}, which"
                    f" meta.properties of this node names"
                )
            if said != error.name:
                said = error.name
                node.say(f"broker_not_registered error={error.name}")
            await node.controller.wait_news(RETRY_MS)
        while not self.is_known:
            await node.controller.wait_news(RETRY_MS)

    @property
    def is_known(self) -> bool:
        broker = self._node.image.brokers.get(self._node.node_id)
        return broker is not None and broker.epoch == self.epoch

    def begin(self) -> None:
        """Say from now on that we are alive."""
        self._beating = self._node.loop.create_task(self._beat())

    async def wait_unfenced(self) -> None:
        await self._is_unfenced.wait()

    def nudge(self) -> None:
        """There is another controller: tell it of us at once."""
        self._nudge.set()

    async def _beat(self) -> None:
        node = self._node
        interval_ms = node.settings.integer("broker.heartbeat.interval.ms")
        while True:
            answer = await self._ask(want_shut_down=False)
            pause_ms = RETRY_MS
            if answer is not None:
                pause_ms = EAGER_MS if answer.is_fenced else interval_ms
                if not answer.is_fenced:
                    self._is_unfenced.set()
            self._nudge.clear()
            timer = node.clock.call_later(pause_ms, self._nudge.set)
            await self._nudge.wait()
            timer.cancel()

    async def _ask(self, *, want_shut_down: bool) -> Any | None:
        from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest

        node = self._node
        timeout_ms = SHUTDOWN_ASK_MS if want_shut_down else node.settings.integer("broker.session.timeout.ms")
        request = BrokerHeartbeatRequest(
            broker_id=node.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=node.image.offset,
            want_shut_down=want_shut_down,
            offline_log_dirs=node.offline_directory_ids(),
        )
        try:
            answer = await node.channel.ask(request, timeout_ms=timeout_ms)
        except KafkaError as error:
            self._say_once(f"heartbeat_failed reason={error.message!r}")
            return None
        if answer.error_code:
            self._say_once(f"heartbeat_refused error={ErrorCode(answer.error_code).name}")
            if answer.error_code == ErrorCode.STALE_BROKER_EPOCH and not node.is_stopping:
                node.fail(RuntimeError("another node has this broker's id; its registration is in force"))
            return None
        self._said = ""
        return answer

    def _say_once(self, line: str) -> None:
        """Until something else happens."""
        if line != self._said:
            self._said = line
            self._node.say(line)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Controlled shutdown: until others lead what we led, as long as that takes, within reason."""
        node = self._node
        await self.stop()
        if self.epoch < 0 or not node.settings.flag("controlled.shutdown.enable"):
            return
        until_ms = node.clock.monotonic_ms() + SHUTDOWN_MS_MAX
        while node.clock.monotonic_ms() < until_ms:
            answer = await self._ask(want_shut_down=True)
            if answer is None or answer.should_shut_down:
                return
            await node.controller.wait_news(EAGER_MS)

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            try:
                await self._beating
            except asyncio.CancelledError:
                pass
            self._beating = None
