"""What helps against an error that something in an image raised? One row for each that is known."""

import re

_ROWS: tuple[tuple[str, str], ...] = (
    (r"libGL\.so", "take opencv-python-headless instead of opencv-python, or install libgl1 by apt-get"),
    (r"libgthread|libglib-2", "install libglib2.0-0 by apt-get"),
    (r"libgomp\.so", "install libgomp1 by apt-get"),
    (r"libsndfile\.so", "install libsndfile1 by apt-get"),
    (
        r"libcud(art|nn)|libcublas|libnccl|libnvrtc",
        "the wheel was built for another CUDA than the base image has: take a base of its major version, "
        "or the wheel of that CUDA's index",
    ),
    (
        r"([\w+.-]+\.so[\w.]*): cannot open shared object file",
        "install the package that holds \\1 (apt-file search \\1)",
    ),
    (
        r"compiled using NumPy 1\.x|numpy\.core\.multiarray|_ARRAY_API not found",
        "add numpy<2 to the requirements",
    ),
    (r"operator torchvision::nms does not exist", "pin the torchvision that belongs to this torch"),
    (
        r"undefined symbol",
        "two packages were built against different versions of a third: pin them to one release",
    ),
    (r"GLIBC_[\d.]+' not found", "the base image is too old for this wheel: take one with a newer glibc"),
    (r"crashed: SIGILL", "the wheel uses instructions that this processor does not have"),
    (r"crashed: SIG", "run it alone in the image to see where: python -X faulthandler -c 'import …'"),
    (r"No module named 'paceline", "install paceline into the image, or test it without --task"),
    (r"No module named '([\w.]+)'", "add the package that holds \\1 to the requirements"),
    (r"Exec format error", "build for the machine it runs on: --platform linux/amd64"),
    (r"out of memory|CUDA error", "look at nvidia-smi on the host; test with less: --batch-size 1"),
)


def advice_for(error: str) -> str:
    for pattern, advice in _ROWS:
        if found := re.search(pattern, error):
            return found.expand(advice) if "\\" in advice else advice
    return "run it in the image to see all that it says: podman run --rm -it --entrypoint python IMAGE"
