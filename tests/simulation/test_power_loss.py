"""Where every batch is synced before it is acknowledged, a power loss takes nothing that was acknowledged."""

from __future__ import annotations

import pytest

from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.testing.dice import SeededDice
from moldau.testing.loop import SeededLoop, run
from moldau.testing.simulation import SimulatedNetwork, SimulatedNode, simulate_power_losses
from moldau.testing.simulation.client import NoAnswer, SimulatedClient
from tests.simulation.planted_bugs import PLANTED_FOR_POWER_LOSSES

SEEDS_PER_TEST = 20
SEEDS_FOR_A_BUG_MAX = 60


@pytest.mark.parametrize("first", range(0, 100, SEEDS_PER_TEST))
def test_transactions_survive_power_losses(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        run = simulate_power_losses(seed)
        assert not run.problems, str(run)


async def _initialize(client: SimulatedClient) -> tuple[int, int]:
    await client.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]), 5)
    response = await client.ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000), 4)
    assert response.error_code == 0
    return response.producer_id, response.producer_epoch


@pytest.mark.parametrize("seed", range(10))
def test_a_coordinators_answer_waits_for_the_disk_where_every_batch_is_synced(seed: int) -> None:
    async def main() -> None:
        loop = SeededLoop.running()
        network = SimulatedNetwork(loop, SeededDice(seed))
        settings = {"log.flush.interval.messages": "1"}
        node = SimulatedNode(network, SeededDice(seed), port=9092, settings=settings, say=lambda line: None)
        node.loses_power = True
        node.start()
        producer_id, epoch = await _initialize(SimulatedClient(network, 9092, "first"))
        node.kill()
        node.start()
        assert await _initialize(SimulatedClient(network, 9092, "second")) == (producer_id, epoch + 1)

    run(main(), SeededDice(seed))


@pytest.mark.parametrize("disk_step", range(2))
def test_what_readers_saw_of_a_recovered_log_survives_a_power_loss(disk_step: int) -> None:
    """The process dies after a write and before its sync; the next one shows the records; then the power goes."""

    async def main(seed: int) -> None:
        network = SimulatedNetwork(SeededLoop.running(), SeededDice(seed))
        settings = {"log.flush.interval.messages": "1"}
        node = SimulatedNode(network, SeededDice(seed), port=9092, settings=settings, say=lambda line: None)
        node.start()
        client = SimulatedClient(network, 9092, "client")
        await _initialize(client)
        node.kill_after(disk_step)
        with pytest.raises(NoAnswer):
            await _initialize(client)
        seen = []
        for node.loses_power in (False, True):
            if node.is_alive:
                node.kill()
            node.start()
            assert node.node is not None
            seen.append([partition.high_watermark for partition in node.node.replicas])
        assert seen[0] == seen[1]

    for seed in range(10):
        run(main(seed), SeededDice(seed))


@pytest.mark.parametrize("name", sorted(PLANTED_FOR_POWER_LOSSES))
def test_power_losses_find(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_FOR_POWER_LOSSES[name](monkeypatch)
    assert any(simulate_power_losses(seed).problems for seed in range(SEEDS_FOR_A_BUG_MAX)), f"{name} was not found"
