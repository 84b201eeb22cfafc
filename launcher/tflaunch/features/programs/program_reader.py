"""Summarize a program's use of TensorFlow from its text, without running it."""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch.features.programs.program_text import ALWAYS, NEVER, SETS, Call, Place, ProgramText
from tflaunch_worker.features import program_source

MULTI_WORKER = "MultiWorkerMirroredStrategy"
PARAMETER_SERVER = "ParameterServerStrategy"
MIRRORED = "MirroredStrategy"
_STRATEGIES = {
    **{name: name for name in (MULTI_WORKER, PARAMETER_SERVER, MIRRORED)},
    **{name: name for name in ("CentralStorageStrategy", "OneDeviceStrategy", "TPUStrategy")},
    "CollectiveAllReduceStrategy": MULTI_WORKER,
    "ParameterServerStrategyV2": PARAMETER_SERVER,
    "get_strategy": "the default strategy",
}
"""Names in `tf.distribute`, and what they make."""

_OF_OTHER_CLUSTERS = frozenset(
    {"byteps", "deepspeed", "horovod", "jax", "mpi4py", "ray", "torch"}
    | {f"{kind}ClusterResolver" for kind in ("GCE", "Kubernetes", "SageMaker", "Simple", "Slurm")}
)
"""What makes a program part of another cluster than that in TF_CONFIG: packages, and names in TensorFlow."""

_KNOWN = frozenset(
    {"PIL", "absl", "albumentations", "click", "cv2", "dotenv", "einops", "h5py", "imageio", "joblib", "keras"}
    | {"librosa", "loguru", "matplotlib", "mlflow", "nltk", "numba", "numpy", "omegaconf", "pandas", "plotly", "psutil"}
    | {"pyarrow", "requests", "rich", "scipy", "seaborn", "skimage", "sklearn", "soundfile", "tabulate", "tensorflow"}
    | {"tensorflow_addons", "tensorflow_datasets", "tensorflow_hub", "tensorflow_io", "tensorflow_probability"}
    | {"tensorflow_text", "termcolor", "tf_keras", "tqdm", "wandb", "yaml"}
)
"""Packages that form no cluster, and start no server for a program unless it calls something with such a name."""

_OF_CLUSTERS = re.compile(
    r"\w*distribut(e|ed|ion)|dtensor|\w*(collective|all_?reduce|cluster_?(spec|resolver)|connect_to|multi_client)\w*"
    r"|(\w+_)?(rank|procid|(task|worker|job)_?(id|idx|index|type|num|number))|(in_?process_?)?server|socket\w*|xmlrpc|asyncio"
    r"|tf_config|tflaunch\w*|keras_backend|(get)?hostname",
    re.IGNORECASE,
)
"""Words of a program that may form a cluster without a strategy, or do in each task a part of the work."""

_HIDING = frozenset({"__import__", "eval", "exec", "import_module", "run_module", "run_path", "spawn", "subprocess"})
"""Names of what runs code that is not read here."""

_SERVER = re.compile(r"(?<!ob)(?<!re)(?<!con)(?<!pre)serv(e|er|ers|ing)(?![a-z])", re.IGNORECASE)
_OF_SERVERS = re.compile(r"parameter_?servers?\w*|ps_?servers?|num_?servers?", re.IGNORECASE)
_TRAINING = ("apply_gradients", "fit_generator", "train_on_batch")
_GLOBAL_BATCH = re.compile(r"_*global_?batch(_?size)?", re.IGNORECASE)
_MODELS = frozenset({"Model", "Sequential", "applications", "load_model"})
_MOST_FILES, _MOST_BYTES = 200, 1 << 20  # half a second at most


class Use(NamedTuple):
    """A place in a program that uses something; ``line`` 0 is all of the file.

    ``certainty``: how certain it is that a task gets there; ``value``: a number that belongs to it.
    """

    name: str
    file: Path
    line: int
    certainty: int = NEVER
    value: int = 0

    def place(self, directory: Path) -> str:
        """Return the place for messages, relative to a directory if it is below it."""
        path = self.file.relative_to(directory) if self.file.is_relative_to(directory) else self.file
        return f"{path}:{self.line}" if self.line else str(path)


class Program(NamedTuple):
    """What a program uses.

    Args:
        file: the program.
        problem: why it cannot be read, "" if it can.
        is_complete: whether all that it could run is read, but for known packages.
        strategies: where strategies of `tf.distribute` are made.
        mentioned: what strategies its text mentions in any way.
        others: what it uses that forms clusters in another way: packages, `tf.estimator`, other cluster resolvers.
        reads_tf_config: whether it makes a TFConfigClusterResolver.
        asks_for_chief: whether it does something as the chief only, without another task in a chief's place.
        has_server: whether anything in it may be a server.
        coordinator: where it makes a ClusterCoordinator.
        tf_config: where it gives TF_CONFIG a cluster of its own, or removes it.
        batches: literal sizes of batches that all workers share.
        keras: where it imports Keras itself rather than that of TensorFlow, if it has models of no other Keras.
        fits: where it trains a model of Keras by `fit`.
        alone: where it trains, if it is certain that no other task has a part in that, whatever the cluster.
    """

    file: Path
    problem: str = ""
    is_complete: bool = False
    strategies: tuple[Use, ...] = ()
    mentioned: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    reads_tf_config: bool = False
    asks_for_chief: bool = False
    has_server: bool = False
    coordinator: Use | None = None
    tf_config: Use | None = None
    batches: tuple[Use, ...] = ()
    keras: Use | None = None
    fits: tuple[Use, ...] = ()
    alone: Use | None = None

    def only_strategy(self, certainty: int = NEVER) -> Use | None:
        """Return where it makes its only strategy, at least as certainly as given."""
        if len(self.mentioned) != 1 or self.others:
            return None
        return next((use for use in self.strategies if use.certainty >= certainty), None)


def find_name(command: Sequence[str]) -> tuple[str, str]:
    """Return kind and name of a command's Python program, "" for none."""
    for index in range(len(command)):
        words = list(command[index:])
        if not program_source.check_command(words) and (found := program_source.find_program(words)):
            return found[0], words[found[1]]
    return "", ""


def find_file(command: Sequence[str], directory: Path) -> tuple[Path, Path] | None:
    """Return a command's Python program and the directory of its modules."""
    kind, name = find_name(command)
    if kind == program_source.SCRIPT:
        path = directory / name
        if not path.is_file():
            return None
        return path, (path.resolve() if path.is_symlink() else path).parent  # where Python looks for modules
    place = directory.joinpath(*name.split("."))
    files = [place.with_suffix(".py"), place / "__main__.py"] if kind == program_source.MODULE else []
    return next(((path, directory) for path in files if path.is_file()), None)


def read_program(file: Path, root: Path) -> Program:
    """Read a program, and the modules below ``root`` that it imports."""
    texts: list[ProgramText] = []
    waiting, seen, left, is_complete = [str(file)], {str(file)}, _MOST_BYTES, True
    while waiting and len(texts) < _MOST_FILES:
        path = waiting.pop(0)
        try:
            read = program_source.read_source(path, left)
            text = ProgramText(Path(path), program_source.parse_source(read), is_program=not texts)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
            if not texts:
                return Program(file, _why_unreadable(error))
            is_complete = False
            continue
        left -= len(read)
        texts.append(text)
        found = [each for _, node in text.imports for each in program_source.imported_files(node, path, [str(root)])]
        waiting += [each for each in dict.fromkeys(found) if each not in seen]
        seen.update(found)
    return _Summary(texts, str(root), is_complete and not waiting).program()


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno or 1}: {error.msg}"
    if isinstance(error, OSError):
        return error.strerror or "it cannot be opened"
    return str(error) if type(error) is ValueError else type(error).__name__


_Function = tuple[int, str]
"""A function: the number of its file, and its name, "" for the module itself."""


class _Summary:
    """Puts together what the files of a program contain."""

    def __init__(self, texts: Sequence[ProgramText], root: str, is_complete: bool) -> None:
        self._texts, self._root, self._is_complete = texts, root, is_complete
        self._numbers = {str(text.path): number for number, text in enumerate(texts)}
        self._names = {name for text in texts for name in text.names}
        self._words = {word for name in self._names for word in name.split(".")}
        self._packages = {package for text in texts for package in text.packages}
        self._defined = {name for text in texts for name in text.defined}
        self._reached = self._find_reached()

    def program(self) -> Program:
        unknown = self._packages - _KNOWN - self._beside() - sys.stdlib_module_names
        words = self._words
        mentioned = {_STRATEGIES[word] for word in words & _STRATEGIES.keys() - self._defined}
        others = words & _OF_OTHER_CLUSTERS
        if any(text.reads_of_tf_config() for text in self._texts):
            others -= {"SimpleClusterResolver"}  # which gets the cluster in TF_CONFIG
        if any(re.match(r"tensorflow\w*\.(compat\.v1\.|python\.)?estimator\b", name) for name in self._names):
            others |= {"tf.estimator"}
        is_complete = self._is_complete and not unknown and not words & _HIDING
        is_alone = is_complete and not mentioned and not others and not any(map(_OF_CLUSTERS.fullmatch, words))
        return Program(
            file=self._texts[0].path,
            is_complete=is_complete,
            strategies=tuple(self._find_strategies()),
            mentioned=frozenset(mentioned),
            others=frozenset(others),
            reads_tf_config="TFConfigClusterResolver" in words,
            asks_for_chief=any(text.asks_for_chief for text in self._texts),
            has_server=any(_SERVER.search(_OF_SERVERS.sub("", word)) for word in words),
            coordinator=next((use for _, use in self._uses() if use.name.endswith(".ClusterCoordinator")), None),
            tf_config=self._find_tf_config(),
            batches=tuple(self._find_batches()),
            keras=self._find_keras(),
            fits=tuple(use for call, use in self._uses() if _is_fit(call)),
            alone=self._find_training() if is_alone else None,
        )

    def _beside(self) -> set[str]:
        """Return the names by which the program imports the files that are read here."""
        paths = (text.path for text in self._texts)
        inside = [path.relative_to(self._root) for path in paths if path.is_relative_to(self._root)]
        return {path.parts[0].removesuffix(".py") for path in inside}

    def _find_training(self) -> Use | None:
        if not self._packages & {"keras", "tensorflow", "tf_keras"}:
            return None
        uses = [(call.name.rpartition(".")[2], _is_fit(call), use) for call, use in self._uses()]
        trains = [use for name, is_fit, use in uses if is_fit or name in _TRAINING]
        fits = [use for name, _, use in uses if name == "fit" and "compile" in self._words]
        return next(iter([*trains, *reversed(fits)]), None)  # a scaler is fitted before the model

    def _find_reached(self) -> dict[_Function, int]:
        """Return how certain it is that each function is called, and each file imported."""
        edges: dict[_Function, list[tuple[_Function, int]]] = {}
        for number, text in enumerate(self._texts):
            for place, target in self._edges_of(number, text):
                edges.setdefault((number, place.scope), []).append((target, place.certainty))
        reached: dict[_Function, int] = {(0, ""): ALWAYS}
        waiting: list[_Function] = [(0, "")]
        while waiting:
            source = waiting.pop()
            for target, certainty in edges.get(source, ()):
                if min(reached[source], certainty) > reached.get(target, NEVER):
                    reached[target] = min(reached[source], certainty)
                    waiting.append(target)
        return reached

    def _edges_of(self, number: int, text: ProgramText) -> Iterator[tuple[Place, _Function]]:
        for call in text.calls:
            given = [each.id for each in call.node.args[:1] if isinstance(each, ast.Name)]
            runs_given = call.name.rpartition(".")[2] in ("run", "Fire")  # as in `app.run(main)`
            for name in (call.name, *(given if runs_given else ())):
                if target := self._defining(number, name):
                    yield call.place, target
        for place, node in text.imports:
            for path in program_source.imported_files(node, str(text.path), [self._root]):
                if path in self._numbers:
                    yield place, (self._numbers[path], "")

    def _defining(self, number: int, name: str) -> _Function | None:
        """Return the only function that a call can mean, by the last part of its name."""
        first, _, last = name.rpartition(".")
        if name.partition(".")[0] in _KNOWN | sys.stdlib_module_names:
            return None
        found = [index for index, each in enumerate(self._texts) if last in each.defined]
        index = number if not first and number in found else found[0] if len(found) == 1 else None
        return None if index is None or self._texts[index].defined[last] > 1 else (index, last)

    def _certainty(self, text: ProgramText, place: Place) -> int:
        return min(place.certainty, self._reached.get((self._numbers[str(text.path)], place.scope), NEVER))

    def _uses(self) -> Iterator[tuple[Call, Use]]:
        for text in self._texts:
            for call in text.calls:
                yield call, Use(call.name, text.path, call.place.line, self._certainty(text, call.place))

    def _find_strategies(self) -> Iterator[Use]:
        for call, use in self._uses():
            name = call.name.rpartition(".")[2]
            if name in _STRATEGIES and re.match(r"tensorflow\.(?!compat\.v1\.|contrib\.)", call.name):
                yield use._replace(name=_STRATEGIES[name])

    def _find_tf_config(self) -> Use | None:
        """Return where it certainly sets or removes TF_CONFIG without reading it."""
        found = []
        for text in self._texts:
            if any(other.reads_of_tf_config() for other in self._texts if other is not text):
                continue
            first_read = min(text.reads_of_tf_config(), default=sys.maxsize)
            for name, place in text.changes_of_tf_config():
                if place.line < first_read and self._certainty(text, place) == ALWAYS:
                    found.append(Use(name, text.path, place.line, ALWAYS))
        setting = [use for use in found if use.name == SETS]
        is_told = "cluster_resolver" in self._words  # of the cluster, in another way
        return next(iter(setting or ([] if is_told else found)), None)

    def _find_batches(self) -> Iterator[Use]:
        """Yield literal sizes of batches that are shared among all workers."""
        for text in self._texts:
            for (scope, name), given in text.values.items():
                if not scope and _GLOBAL_BATCH.fullmatch(name) and (size := text.literal(ast.Name(name), "")):
                    assert given[0] is not None
                    yield Use(name, text.path, given[0].lineno, ALWAYS, size)
        for call, use in self._uses():
            takes_data = _is_fit(call) or call.name.endswith(".experimental_distribute_dataset")
            text = self._texts[self._numbers[str(use.file)]]
            if use.certainty == ALWAYS and takes_data and (found := text.find_batch(call)):
                yield use._replace(line=found[0], value=found[1])

    def _find_keras(self) -> Use | None:
        if "KERAS_BACKEND" in self._words or not self._words & _MODELS or "tf_keras" in self._packages:
            return None
        if any(".keras" in name for name in self._names):
            return None
        for text in self._texts:
            for place, node in text.imports:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                if not getattr(node, "level", 0) and any(name.partition(".")[0] == "keras" for name in names):
                    return Use("keras", text.path, place.line)
        return None


def _is_fit(call: Call) -> bool:
    """Return whether a call is `fit` of Keras: others take no epochs."""
    return call.name.endswith(".fit") and bool(
        {each.arg for each in call.node.keywords} & {"epochs", "steps_per_epoch"}
    )
