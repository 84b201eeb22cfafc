"""Environments with packages beside TensorFlow, what their tasks do there, and their table in docs/warm_start.md."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from support.specs import REPOSITORY

PAGE = REPOSITORY / "docs" / "warm_start.md"
HEAD = "| environment | packages | result |"


class Environment(NamedTuple):
    """Packages to install, modules to preload after TensorFlow, and a program that leaves its ``result``.

    ``refused``: the module that starts threads when it is imported, so that nothing is forked if it is preloaded.
    """

    packages: tuple[str, ...]
    modules: tuple[str, ...]
    use: str
    refused: str = ""


PANDAS = """
table = pyarrow.Table.from_pandas(pandas.DataFrame({"a": range(100_000)}))
for pool in (pyarrow.jemalloc_memory_pool(), pyarrow.default_memory_pool()):
    buffers = [pyarrow.allocate_buffer(1 << 20, memory_pool=pool) for _ in range(50)]
    del buffers
    pool.release_unused()
result = table.to_pandas().a.sum()
"""
SCIKIT_LEARN = """
data = numpy.random.RandomState(1).rand(2000, 8)
labels = data[:, 0] > 0.5
found = sklearn.cluster.KMeans(4, n_init=1, random_state=1).fit(data)
trees = sklearn.ensemble.HistGradientBoostingClassifier(max_iter=5).fit(data, labels)
fitted = sklearn.linear_model.LogisticRegression().fit(data, labels)
result = round(found.inertia_, 4), trees.score(data, labels), fitted.score(data, labels)
"""
SCIPY = """
import io
data = numpy.random.RandomState(1).rand(300, 300)
values = scipy.linalg.eigvalsh(data @ data.T)
best = scipy.optimize.minimize(lambda x: ((x - 1) ** 2).sum(), numpy.zeros(3))
matplotlib.pyplot.plot(values)
picture = io.BytesIO()
matplotlib.pyplot.savefig(picture, format="png")
result = round(float(values[-1]), 4), best.success, picture.getvalue()[:4]
"""
POLARS = """
frame = polars.DataFrame({"a": range(100_000)}).with_columns(b=polars.col("a") % 7)
result = frame.group_by("b").agg(polars.col("a").sum()).sort("b").rows()
"""
OPENCV = """
picture = numpy.random.RandomState(1).rand(1000, 1000, 3).astype("float32")
small = cv2.resize(cv2.GaussianBlur(picture, (9, 9), 0), (100, 100), interpolation=cv2.INTER_AREA)
result = round(float(small.sum()), 1)
"""
NUMBA = """
@numba.njit(parallel=True)
def add(values):
    total = 0
    for index in numba.prange(values.size):
        total += values[index]
    return total
result = add(numpy.arange(100_000))
"""
JAX = """
result = float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((600, 600))))
"""
TORCH = """
torch.manual_seed(1)
weights = torch.rand(600, 600, requires_grad=True)
(weights @ weights).sum().backward()
batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(weights.detach()), batch_size=100)
result = round(float(weights.grad.mean()), 2), sum(len(batch) for batch, in batches), torch.get_num_threads()
"""
TOKENIZERS = """
import tokenizers
from tokenizers import models, pre_tokenizers, trainers
words = tokenizers.Tokenizer(models.WordLevel(unk_token="?"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.train_from_iterator(["a b c"] * 1000, trainers.WordLevelTrainer(special_tokens=["?"]))
encoded = [line.ids for line in words.encode_batch(["a b", "c d"] * 1000)]
"""
DATASETS = """
feature = tensorflow_datasets.features.Tensor(shape=(2,), dtype=numpy.int64)
features = tensorflow_datasets.features.FeaturesDict({"x": feature})
result = features.encode_example({"x": numpy.arange(2)})["x"].tolist()
"""
MLFLOW = """
import tempfile
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
with tempfile.TemporaryDirectory() as place:
    mlflow.set_tracking_uri(f"file:{place}/runs")
    with mlflow.start_run() as recorded:
        mlflow.log_metric("loss", 1)
    result = mlflow.get_run(recorded.info.run_id).data.metrics
"""
WANDB = """
import tempfile
with tempfile.TemporaryDirectory() as place:
    with wandb.init(mode="offline", dir=place, settings=wandb.Settings(silent=True)) as recorded:
        recorded.log({"loss": 1})
result = "logged"
"""
GRPC = """
from concurrent import futures
server = grpc.server(futures.ThreadPoolExecutor(2))
echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Echo": echo})])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    result = channel.unary_unary("/test/Echo")(b"hello", wait_for_ready=True, timeout=60)
server.stop(None).wait()
"""
SMALL = (
    TOKENIZERS
    + """
import io
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(1))
optuna.logging.disable_default_handler()
study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=4, n_jobs=2)
with h5py.File(io.BytesIO(), "w") as file:
    file["x"] = numpy.ones(1000)
    total = file["x"][:].sum()
state, _ = gymnasium.make("CartPole-v1").reset(seed=1)
picture = PIL.Image.new("RGB", (500, 500), "red").resize((50, 50))
rows = [{"a": number} for number in tqdm.auto.tqdm(range(3), disable=True)]
shown = ruamel.yaml.YAML(typ="safe").load(yaml.safe_dump(rows))
result = encoded[:2], len(study.trials), total, state.tolist(), picture.getpixel((0, 0)), shown, hydra.__name__
"""
)
BOOSTING = """
data = numpy.random.RandomState(1).rand(2000, 8)
labels = (data[:, 0] > 0.5).astype(int)
trees = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(data, labels), 5)
others = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(data, labels), 5)
result = round(float(trees.predict(data).sum()), 2), round(float(others.predict(xgboost.DMatrix(data)).sum()), 1)
"""
STATSMODELS = """
data = numpy.random.RandomState(1).rand(2000, 8)
fitted = statsmodels.api.OLS(data[:, 0], data[:, 1:]).fit()
explained = shap.explainers.Linear((fitted.params, 0), data[:, 1:]).shap_values(data[:5, 1:])
result = round(float(fitted.rsquared), 6), numpy.round(explained.sum(), 6)
"""
HUGGING_FACE = """
rows = datasets.Dataset.from_dict({"a": list(range(1000))}).map(lambda row: {"b": row["a"] + 1})
result = sum(rows["b"])
"""
KERAS_TUNER = """
import tensorflow as tf
settings = keras_tuner.HyperParameters()
layer = tf.keras.layers.Dense(settings.Int("units", 4, 8), kernel_initializer="ones")
result = layer(tf.ones((2, 3))).numpy().sum(), tensorflow_hub.__name__
"""
SERVICES = """
boto3.client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
google.cloud.storage.Client.create_anonymous_client()
result = duckdb.sql("select sum(i), count(distinct i % 7) from range(1000000) t(i)").fetchall()
"""
ONNX = """
result = onnxruntime.get_available_providers()
"""
ENVIRONMENTS = {
    "pandas": Environment(("pandas", "pyarrow"), ("pandas", "pyarrow"), PANDAS),
    "scikit-learn": Environment(
        ("scikit-learn", "matplotlib"),
        ("sklearn.cluster", "sklearn.ensemble", "sklearn.linear_model", "matplotlib.pyplot"),
        SCIKIT_LEARN,
    ),
    "scipy": Environment(("scipy", "matplotlib"), ("scipy.linalg", "scipy.optimize", "matplotlib.pyplot"), SCIPY),
    "statsmodels": Environment(("statsmodels", "shap"), ("statsmodels.api", "shap"), STATSMODELS),
    "boosting": Environment(("lightgbm", "xgboost"), ("lightgbm", "xgboost"), BOOSTING),
    "numba": Environment(("numba",), ("numba",), NUMBA),
    "jax": Environment(("jax",), ("jax.numpy",), JAX),
    "torch": Environment(("torch",), ("torch", "torch.utils.data"), TORCH),
    "polars": Environment(("polars",), ("polars",), POLARS, refused="polars"),
    "onnxruntime": Environment(("onnxruntime",), ("onnxruntime",), ONNX, refused="onnxruntime"),
    "opencv": Environment(("opencv-python-headless",), ("cv2",), OPENCV),
    "transformers": Environment(("transformers",), ("transformers",), TOKENIZERS + "result = encoded[:2]"),
    "datasets": Environment(("datasets",), ("datasets",), HUGGING_FACE),
    "tensorflow-datasets": Environment(("tensorflow-datasets",), ("tensorflow_datasets",), DATASETS),
    "keras-tuner": Environment(("keras-tuner", "tensorflow-hub"), ("keras_tuner", "tensorflow_hub"), KERAS_TUNER),
    "mlflow": Environment(("mlflow-skinny",), ("mlflow",), MLFLOW),
    "wandb": Environment(("wandb",), ("wandb",), WANDB),
    "grpcio": Environment(("grpcio", "protobuf"), ("grpc", "google.protobuf"), GRPC),
    "services": Environment(
        ("boto3", "google-cloud-storage", "duckdb"), ("boto3", "google.cloud.storage", "duckdb"), SERVICES
    ),
    "small": Environment(
        ("PyYAML", "ruamel.yaml", "Pillow", "h5py", "tqdm", "hydra-core", "optuna", "tokenizers", "gymnasium"),
        ("yaml", "ruamel.yaml", "PIL.Image", "h5py", "tqdm.auto", "hydra", "optuna", "tokenizers", "gymnasium"),
        SMALL,
    ),
}


def refusal(module: str) -> str:
    """Return what the table says where a module is refused."""
    return f"refused: `{module}`"


def versions(python: Path, name: str) -> str:
    """Return the packages of an environment with their versions, as its interpreter finds them."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    packages = ENVIRONMENTS[name].packages
    found = subprocess.run([python, "-c", code, *packages], check=True, capture_output=True, text=True).stdout.split()
    return ", ".join(f"{package} {version}" for package, version in zip(packages, found, strict=True))


def with_row(page: str, name: str, packages: str, result: str) -> str:
    """Return the page with the row of one environment changed, and everything else as it was."""
    lines = page.splitlines()
    start = lines.index(HEAD) + 2
    length = next((n for n, line in enumerate(lines[start:]) if not line.startswith("|")), len(lines) - start)
    rows = {line.split("|")[1].strip(): line for line in lines[start : start + length]}
    rows[name] = f"| {name} | {packages} | {result} |"
    table = [rows[name] for name in ENVIRONMENTS if name in rows]
    return "\n".join([*lines[:start], *table, *lines[start + length :]]) + "\n"
