"""Writing a log as a Minari data set, through Minari's own storage."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.data.formats.minari import OWN_KEY, OWN_NAMES, OWN_VERSION, minari_root
from bats.data.formats.untrusted import one_line
from bats.errors import BatsError, OutputError

if TYPE_CHECKING:
    from minari.data_collector import EpisodeBuffer

ID_FORM = r"(?:[-_\w]{2,}/|[-_\w]+(?:/[-_\w]+)+/)?[-_\w]+-v[0-9]{1,9}"
"""Minari's own rule, with a version; a namespace of a single letter is more than its parser can take"""

PIP_NAMES = {"PIL": "pillow"}
"""packages that are called otherwise than what they install"""

EPISODE_BYTES = 40_000
"""what Minari's file takes per episode beside the numbers; 22,000 were measured"""


def write_minari(
    dataset: Dataset,
    dataset_id: str,
    *,
    description: str = "",
    author: str = "",
    algorithm_name: str = "",
    progress: Progress = no_progress,
) -> Path:
    """Writes a log where `minari.load_dataset(dataset_id)` finds it; returns its folder.

    An episode's rows are stored with one observation more, the state after the last row. Where that was never logged
    (only at terminations) the last state is repeated and the row listed in the metadata. Start states other than the
    first rows of episodes are not kept. A data set of that name is never overwritten, and a failure leaves none.
    """
    try:
        import minari
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise _missing(error) from error
    if not re.fullmatch(ID_FORM, dataset_id):
        raise OutputError(f"'{dataset_id}' is no Minari name; it must look like 'group/name-v0'.")
    target = minari_root() / dataset_id
    if target.exists():
        raise OutputError(f"{target} exists already; choose another name or version.")
    told = {"description": description, "author": {author} if author else "", "algorithm_name": algorithm_name}
    metadata: dict[str, Any] = {name: text for name, text in told.items() if text}
    metadata |= {"dataset_id": dataset_id, "minari_version": minari.__version__, OWN_KEY: _own_metadata(dataset)}
    # built under a hidden name, which Minari does not list, and renamed once it is whole
    hidden = minari_root() / f".{secrets.token_hex(8)}"
    try:
        hidden.mkdir(parents=True)
        _check_space(dataset, target)
        storage = MinariStorage.new(
            hidden / "data",
            observation_space=_box(dataset.observations),
            action_space=_action_space(dataset),
            data_format="hdf5",
        )
        storage.update_metadata(metadata)
        storage.update_episodes(_episodes(dataset, progress, dataset_id))
        _make_namespace(dataset_id)
        hidden.rename(target)
    except ImportError as error:  # Minari imports what its storage needs only when one is made
        raise _missing(error) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise OutputError(f"{target} could not be written: {one_line(error)}.") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return target


def _missing(error: ImportError) -> BatsError:
    """What has to be installed, by the name it is installed under."""
    missing = (error.name or "minari").split(".")[0]
    beside = "" if missing == "minari" else f" {PIP_NAMES.get(missing, missing)}"
    needs = f"Writing Minari data sets needs {missing} ({one_line(error)})"
    return BatsError(f"{needs}: pip install 'bats-rl[minari]'{beside}")


def _own_metadata(dataset: Dataset) -> dict[str, Any]:
    """What Minari's own layout cannot say."""
    own: dict[str, Any] = {"version": OWN_VERSION, "unknown_next": np.flatnonzero(~dataset.next_known).tolist()}
    return own | {name: list(getattr(dataset, name)) for name in OWN_NAMES if getattr(dataset, name) is not None}


def _check_space(dataset: Dataset, target: Path) -> None:
    """Refuses to begin on a disk that is too full: running out half-way crashes the library Minari writes with."""
    arrays = (dataset.observations, dataset.actions, dataset.rewards, dataset.terminations, dataset.episode_ends)
    needed = 2 * sum(values.nbytes for values in arrays) + EPISODE_BYTES * dataset.episode_count
    free = shutil.disk_usage(minari_root()).free
    if free < needed:
        raise OutputError(f"{target} may need {needed:,} bytes; its disk has {free:,} left.")


def _make_namespace(dataset_id: str) -> None:
    """A name with slashes lies in namespaces, which Minari marks with a file of their own."""
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = dataset_id.rpartition("/")[0]
    if namespace and namespace not in list_local_namespaces():
        create_namespace(namespace)


def _episodes(dataset: Dataset, progress: Progress, name: str) -> Iterator[EpisodeBuffer]:
    from minari.data_collector import EpisodeBuffer

    actions = dataset.actions if dataset.action_count is None else dataset.actions.astype(np.int64)
    ends = dataset.episode_ends.copy()
    ends[-1] = True
    # T + 1 states can only tell transitions that follow one another; anything else has to be an episode of its own
    ends[:-1] |= np.any(dataset.next_observations[:-1] != dataset.observations[1:], axis=1)
    truncations = ends & ~dataset.terminations
    first = 0
    for number, last in enumerate(np.flatnonzero(ends).tolist()):
        rows = slice(first, last + 1)
        progress(f"writing {name}", first, len(dataset))
        yield EpisodeBuffer(
            id=number,
            observations=np.concatenate([dataset.observations[rows], dataset.next_observations[last : last + 1]]),
            actions=actions[rows],
            rewards=dataset.rewards[rows],
            terminations=dataset.terminations[rows],
            truncations=truncations[rows],
            infos={},  # without it, Minari cannot print the episode
        )
        first = last + 1
    progress(f"writing {name}", len(dataset), len(dataset))


def _box(rows: np.ndarray) -> gymnasium.spaces.Box:
    """A space without bounds: a log does not say which states or actions are possible."""
    return gymnasium.spaces.Box(-np.inf, np.inf, rows.shape[1:], rows.dtype.type)


def _action_space(dataset: Dataset) -> gymnasium.spaces.Space[Any]:
    return _box(dataset.actions) if dataset.action_count is None else gymnasium.spaces.Discrete(dataset.action_count)
