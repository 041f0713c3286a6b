"""Nothing that comes from outside is run: no pickles, no eval, no code of models."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = [
    *sorted((REPOSITORY / "services").glob("*/optimist_*")),
    REPOSITORY / "cli" / "optimist_cli",
    REPOSITORY / "client" / "optimist_client",
]

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


@cache
def trees() -> dict[Path, ast.AST]:
    """Returns the sources of the services and of what users install."""
    paths = (path for package in PACKAGES for path in package.rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


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


def banned_imports(tree: ast.AST) -> Iterator[str]:
    """Yields what a source imports that runs what it is given."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{one.name}" for one in node.names)]
        yield from (name for name in names if {name, name.split(".")[0]} & BANNED_MODULES)


def banned_calls(tree: ast.AST) -> Iterator[str]:
    """Yields the calls of a source that run what they are given."""
    for name, call in calls(tree):
        if name in BANNED_CALLS and not is_safe_load(name, call, tree):
            yield f"line {call.lineno}: {name}"
        for keyword in call.keywords:
            value = keyword.value
            is_true = isinstance(value, ast.Constant) and value.value is True
            if keyword.arg == "shell" and is_true:
                yield f"line {call.lineno}: a shell"
            if keyword.arg == "weights_only" and not is_true:
                yield f"line {call.lineno}: pickles"
        # Generation configs are data and nothing else.
        if name.endswith(".from_pretrained") and name != "GenerationConfig.from_pretrained":
            given = {one.arg: ast.unparse(one.value) for one in call.keywords}
            if given.get("trust_remote_code") != "False":
                yield f"line {call.lineno}: code of models"


def test_no_source_runs_what_it_is_given() -> None:
    services = {package.parent.name for package in PACKAGES[:-2]}
    assert services == {"common", "gateway", "proposer", "scheduler", "worker"}
    assert len(trees()) > 200
    for path, tree in trees().items():
        assert [*banned_imports(tree), *banned_calls(tree)] == [], path


def test_models_are_read_from_safetensors_alone() -> None:
    loads = [
        {one.arg: ast.unparse(one.value) for one in call.keywords}
        for path, tree in trees().items()
        if "optimist_worker" in path.parts
        for name, call in calls(tree)
        if name.endswith(".from_pretrained") and "Config" not in name and "Tokenizer" not in name
    ]
    assert loads
    for given in loads:
        assert given.get("use_safetensors") == "True", given


def test_python_runs_no_pattern_of_a_client() -> None:
    """Its `re` backtracks. Patterns of clients go to llguidance's engine, which does not."""
    gateway = [path for path in trees() if "optimist_gateway" in path.parts]
    assert gateway
    for path in gateway:
        # From the model's own format of calls, escaped, on bounded pieces of its answers.
        is_of_the_format = path.parts[-2:] == ("structure", "tool_calls.py")
        for name, call in calls(trees()[path]):
            if name.startswith("re.") and name != "re.escape" and not is_of_the_format:
                assert isinstance(call.args[0], ast.Constant), f"{path}:{call.lineno}"
