"""`moldau feature`: the levels that the cluster agreed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property, parse_pairs

if TYPE_CHECKING:
    from moldau.client import ClusterClient
    from moldau.client.admin import Feature

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show and set the cluster's feature levels.")


@app.command("list")
def list_features(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Show what the brokers support and what is in force."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import admin

    features = on_cluster(bootstrap, properties, admin.describe_features)
    show_rows(output, FEATURE_COLUMNS, feature_rows(features))


FEATURE_COLUMNS = {
    "FEATURE": "feature",
    "LEVEL": "level",
    "RELEASE": "release",
    "MIN": "supported_min",
    "MAX": "supported_max",
}


def feature_rows(features: list[Feature]) -> list[dict[str, Any]]:
    from moldau.cluster import METADATA_VERSION, metadata_release

    return [
        {
            "feature": feature.name,
            "level": feature.finalized,
            "release": metadata_release(feature.finalized) if feature.name == METADATA_VERSION else None,
            "supported_min": feature.supported_min,
            "supported_max": feature.supported_max,
        }
        for feature in features
    ]


@app.command("set")
def set_features(
    levels: Annotated[
        list[str],
        typer.Argument(
            metavar="FEATURE=LEVEL...", help="metadata.version also takes a release, such as 4.3.", show_default=False
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, and change nothing.")] = False,
    unsafe_downgrade: Annotated[
        bool, typer.Option("--unsafe-downgrade", help="Lower a level even if metadata is lost.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Raise or lower feature levels; level 0 takes a feature away."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.client import admin
    from moldau.cluster import parse_level

    try:
        wanted = {name: parse_level(name, text) for name, text in parse_pairs(levels, "").items()}
    except ValueError as error:
        raise usage(str(error)) from None

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        current = {feature.name: feature.finalized for feature in await admin.describe_features(client)}
        lowered = {name for name, level in wanted.items() if level < current.get(name, 0)}
        if lowered and lowered != set(wanted):
            raise usage(f"raise and lower levels in two commands: {', '.join(sorted(lowered))} would go down")
        kind = admin.UpgradeType.UPGRADE
        if lowered:
            kind = admin.UpgradeType.UNSAFE_DOWNGRADE if unsafe_downgrade else admin.UpgradeType.SAFE_DOWNGRADE
        await admin.update_features(client, wanted, upgrade_type=kind, validate_only=dry_run)
        result = "valid" if dry_run else "set"
        return [
            {"feature": name, "from": current.get(name, 0), "to": level, "result": result}
            for name, level in wanted.items()
        ]

    rows = on_cluster(bootstrap, properties, work)
    show_rows(output, {"FEATURE": "feature", "FROM": "from", "TO": "to", "RESULT": "result"}, rows)
