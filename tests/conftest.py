"""Shape checks on every annotated function of the package, except the compiled kernels, which a wrapper would break."""

from pathlib import Path

from jaxtyping import install_import_hook

PACKAGE = Path(__file__).parent.parent / "bats"
CHECKED = sorted(
    ".".join(path.with_suffix("").relative_to(PACKAGE.parent).parts)
    for path in PACKAGE.rglob("*.py")
    if path.stem not in ("__init__", "kernels", "distinct") and path.parts[-2:] != ("cli", "main.py")
)

install_import_hook(CHECKED, "beartype.beartype")
