"""Checks the SBOMs in a folder: by CycloneDX's own schema, and for what each must name."""

import json
import pathlib
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

# Linked into every binary, beside the crates.
ALWAYS = {"rust-std", "compiler-rt", "libunwind", "tokio", "rustls"}

folder = pathlib.Path(sys.argv[1])
files = sorted(folder.glob("*.cdx.json"))
assert files, f"{folder} has no SBOM"
for file in files:
    text = file.read_text()
    fault = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
    assert fault is None, f"{file.name}: {fault}"
    document = json.loads(text)
    parts = document["components"]
    names = {part["name"] for part in parts}
    wanted = ALWAYS | ({"libc6"} if "oci" in file.name else set())
    assert wanted <= names, f"{file.name} lacks {sorted(wanted - names)}"
    references = [part["bom-ref"] for part in parts]
    assert len(references) == len(set(references)), f"{file.name}: a bom-ref is there twice"
    for part in parts:
        assert part["version"], f"{file.name}: {part['name']} has no version"
    print(f"    {file.name}: {len(parts)} components")
