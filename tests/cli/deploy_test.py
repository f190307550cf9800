"""deploy/kubernetes against the program: flags that exist, ports and probes that it has."""
import re

import support
from support import SOURCE, TINY, Case

FOLDER = SOURCE / "deploy/kubernetes"


def text(name):
    return (FOLDER / name).read_text()


class Manifests(Case):
    def arguments(self):
        """Of the container that serves."""
        block = re.search(r"\n( +)args:\n((?:\1- .*\n)+)", text("deployment.yaml"))
        return [line.strip()[2:] for line in block[2].splitlines()]

    def test_the_servers_flags_are_the_programs(self):
        command, model, *flags = self.arguments()
        self.assertEqual((command, model), ("serve", "openai/gpt-oss-20b"))
        flags = [flag.replace("--backend=cuda", "--backend=cpu") for flag in flags]  # a card need not be here
        settings = self.ok("serve", TINY, *flags, "--print-config", "--json").json()
        named = {flag.split("=")[0][2:]: flag.partition("=")[2] for flag in flags}
        for name, value in named.items():
            self.assertEqual(str(settings[name]["value"]), value or "true", name)

    def test_ports_probes_and_grace_fit_the_flags(self):
        flags = dict(flag[2:].split("=") for flag in self.arguments() if "=" in flag)
        ports = set(re.findall(r"containerPort: (\d+)", text("deployment.yaml")))
        used = {flags["port"]} | {flags[name].rsplit(":", 1)[1] for name in ("kv-events-endpoint", "kv-events-replay-endpoint")}
        self.assertEqual(ports, used)
        self.assertIn(f"port: {flags['port']}, targetPort: http", text("service.yaml"))
        self.assertEqual(re.findall(r"path: (/health)", text("deployment.yaml")), ["/health"] * 3)
        grace = int(re.search(r"terminationGracePeriodSeconds: (\d+)", text("deployment.yaml"))[1])
        self.assertGreater(grace, int(flags["shutdown-timeout"]))

    def test_every_manifest_is_listed(self):
        listed = re.search(r"resources: \[(.*)\]", text("kustomization.yaml"))[1].split(", ")
        self.assertEqual(sorted(listed), sorted(f.name for f in FOLDER.glob("*.yaml") if f.name != "kustomization.yaml"))

if __name__ == "__main__":
    support.main()
