"""ListTransactions (key 66), versions 0 to 2: the transactions that this broker coordinates (KIP-664).

Filters: states and producer ids; 1 has a duration (only transactions that began longer ago, KIP-994); 2 a pattern for
transactional ids (KIP-1152), in RE2's syntax, which cannot stall the broker.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.coordination.transactions import STATES_BY_TITLE, ListTransactions, Transaction
from moldau.kernel import KafkaError
from moldau.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse


async def handle(request: ListTransactionsRequest, context: Context) -> ListTransactionsResponse:
    known = frozenset(STATES_BY_TITLE[name] for name in request.state_filters if name in STATES_BY_TITLE)
    unknown = [name for name in request.state_filters if name not in STATES_BY_TITLE]
    if context.node.transactions_in_use is None:
        return ListTransactionsResponse(unknown_state_filters=unknown)
    try:
        replies = context.node.transactions.coordinator.ask_all(
            lambda token: ListTransactions(
                token,
                known if request.state_filters else None,
                frozenset(request.producer_id_filters),
                request.duration_filter,
                request.transactional_id_pattern or "",
            )
        )
        found: list[Transaction] = [transaction for reply in replies for transaction in await reply]
    except KafkaError as refusal:
        return ListTransactionsResponse(error_code=refusal.code)
    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            ListTransactionsResponse.TransactionState(each.transactional_id, each.producer_id, each.state.title)
            for each in found
        ],
    )
