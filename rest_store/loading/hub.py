"""Whether the Hugging Face hub answers.

Its libraries try an unreachable hub again and again, for every file of a model. Here it is tried
once.
"""

from __future__ import annotations


def hub_failure(name: str, *, kind: str = "model") -> str | None:
    """Return why the hub cannot be reached or does not work, in one line, or None if it does.

    One request, without repetition; `HF_HUB_ETAG_TIMEOUT` limits its time, and `HF_HUB_OFFLINE` and
    `HF_ENDPOINT` are obeyed.

    Args:
        name: of a model or data set, which need not exist.
        kind: "model" or "dataset".
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        get_hf_file_metadata(hf_hub_url(name, "README.md", repo_type=kind))
    except HFValidationError:
        return None  # not a valid name on the hub: loading it raises the error
    except HfHubHTTPError as error:
        # Of any answer but these, what it means is for those who load.
        status = error.response.status_code
        return f"status {status}" if status >= 500 else None
    except Exception as error:  # of whichever HTTP library the hub's package uses
        reason = " ".join(str(error).split())[:200]
        return f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return None
