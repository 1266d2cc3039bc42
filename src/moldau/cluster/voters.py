"""Voters as the metadata log has them (KIP-853): records from voter sets, and voter sets from records."""

from __future__ import annotations

from moldau.consensus import ReplicaKey, Voter, VoterEndpoint, Voters
from moldau.protocol.messages.raft.voters_record import VotersRecord


def voters_record(voters: Voters) -> VotersRecord:
    return VotersRecord(
        voters=[
            VotersRecord.Voter(
                voter_id=voter.key.node_id,
                voter_directory_id=voter.key.directory_id,
                endpoints=[VotersRecord.Endpoint(*endpoint) for endpoint in voter.endpoints],
                kraft_version_feature=VotersRecord.KRaftVersionFeature(
                    voter.kraft_version_min, voter.kraft_version_max
                ),
            )
            for voter in voters.all
        ]
    )


def voters_of(record: VotersRecord) -> Voters:
    return Voters.of(
        Voter(
            ReplicaKey(each.voter_id, each.voter_directory_id),
            tuple(VoterEndpoint(point.name, point.host, point.port) for point in each.endpoints),
            each.kraft_version_feature.min_supported_version,
            each.kraft_version_feature.max_supported_version,
        )
        for each in record.voters
    )
