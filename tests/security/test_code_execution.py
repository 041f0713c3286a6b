"""Nothing that comes from outside is run: no pickles, no eval, no code of models."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = [
    *sorted((REPOSITORY / "services").glob("*/optimist_*")),
    REPOSITORY / "cli" / "optimist_cli",
    REPOSITORY / "client" / "optimist_client",
]
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))

BANNED_MODULES = {
    *("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"),
    # It sends pickles between processes.
    *("multiprocessing", "concurrent.futures.process"),
    *("xmlrpc", "code", "codeop", "telnetlib", "zmq"),
}
BANNED_CALLS = {
    *("eval", "exec", "compile", "__import__", "breakpoint", "input"),
    *("torch.load", "torch.hub.load", "numpy.load", "np.load", "yaml.load", "yaml.unsafe_load"),
    *("yaml.full_load", "os.system", "os.popen", "jinja2.Environment", "Environment"),
    *("ast.literal_eval", "tempfile.mktemp", "pandas.read_pickle"),
}
SAFE_LOADER = "getattr(yaml, 'CSafeLoader', yaml.SafeLoader)"


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yields the calls of a module with the dotted name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def is_safe_load(name: str, call: ast.Call, tree: ast.AST) -> bool:
    """Whether it is yaml.load with a loader that makes nothing but plain values."""
    loaders = [ast.unparse(one.value) for one in call.keywords if one.arg == "Loader"]
    assigned = {
        ast.unparse(node.target): ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and node.value is not None
    }
    return name == "yaml.load" and bool(loaders) and assigned.get(loaders[0]) == SAFE_LOADER


def test_the_walk_sees_every_service() -> None:
    services = {package.parent.name for package in PACKAGES[:-2]}
    assert services == {"common", "gateway", "proposer", "scheduler", "worker"}
    assert len(SOURCES) > 200


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_source_runs_what_it_is_given(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{one.name}" for one in node.names)]
        for name in names:
            assert not {name, name.split(".")[0]} & BANNED_MODULES, f"imports {name}"
    for name, call in calls(tree):
        if not is_safe_load(name, call, tree):
            assert name not in BANNED_CALLS, f"line {call.lineno}: calls {name}"
        for keyword in call.keywords:
            value = keyword.value
            is_true = isinstance(value, ast.Constant) and value.value is True
            assert keyword.arg != "shell" or not is_true, f"line {call.lineno}: a shell"
            assert keyword.arg != "weights_only" or is_true, f"line {call.lineno}: pickles"
        # Generation configs are data and nothing else.
        if name.endswith(".from_pretrained") and name != "GenerationConfig.from_pretrained":
            given = {one.arg: ast.unparse(one.value) for one in call.keywords}
            assert given.get("trust_remote_code") == "False", f"line {call.lineno}: code of models"


def test_models_are_read_from_safetensors_alone() -> None:
    worker = REPOSITORY / "services" / "worker" / "optimist_worker"
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in worker.rglob("*.py")]
    loads = [
        {one.arg: ast.unparse(one.value) for one in call.keywords}
        for tree in trees
        for name, call in calls(tree)
        if name.endswith(".from_pretrained") and "Config" not in name and "Tokenizer" not in name
    ]
    assert loads
    for given in loads:
        assert given.get("use_safetensors") == "True", given


def test_python_runs_no_pattern_of_a_client() -> None:
    """Its `re` backtracks. Patterns of clients go to llguidance's engine, which does not."""
    gateway = REPOSITORY / "services" / "gateway" / "optimist_gateway"
    # From the model's own format of calls, escaped, on bounded pieces of its answers.
    from_the_format = gateway / "structure" / "tool_calls.py"
    for path in gateway.rglob("*.py"):
        for name, call in calls(ast.parse(path.read_text(encoding="utf-8"))):
            if name.startswith("re.") and name != "re.escape" and path != from_the_format:
                assert isinstance(call.args[0], ast.Constant), f"{path}: line {call.lineno}"
