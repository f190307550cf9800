#!/usr/bin/env python3
"""Cuts highlight.js down to the languages that the chat page colours: cut.py HIGHLIGHT.MIN.JS >highlight.js"""

import re
import sys

LANGUAGES = """bash c cmake cpp cs css diff dockerfile go haskell http ini java javascript json kotlin latex lua makefile markdown
nginx perl php plaintext powershell protobuf python r ruby rust scala shell sql swift typescript vim xml x86asm yaml tex c-like""".split()

core, *rest = re.split(r'(?=hljs\.registerLanguage\(")', open(sys.argv[1], encoding="utf-8").read())
core = core.replace("showedUpgradeWarning=false", "showedUpgradeWarning=true")  # it nags on the console
sys.stdout.write("/*! highlight.js 9.18.5, some languages; BSD 3-Clause, third_party/highlight.js/LICENSE */\n" + core)
for part in rest:
    if part.split('"')[1] in LANGUAGES:
        sys.stdout.write(part.rstrip(";\n") + ";\n")
