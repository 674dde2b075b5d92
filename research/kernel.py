"""Assemble extras/page/train/kernel.wat: python -m research.kernel writes kernel.txt, both variants in base64."""

from base64 import b64encode

import wasmtime

from extras.page.train import FOLDER, kernel_texts

if __name__ == "__main__":
    assembled = [b64encode(wasmtime.wat2wasm(text)).decode() for text in kernel_texts()]
    (FOLDER / "kernel.txt").write_text("\n".join(assembled) + "\n")
