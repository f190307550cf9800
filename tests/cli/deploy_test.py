"""deploy/kubernetes and its overlays for two hosts against the program: flags and variables that it knows, ports and probes
that it has."""
import os
import re
import tempfile
from pathlib import Path

import support
from support import SOURCE, TINY, Case

FOLDER = SOURCE / "deploy/kubernetes"
TWO_HOSTS = SOURCE / "deploy/kubernetes-two-hosts"
TWO_CARDS = SOURCE / "deploy/kubernetes-two-hosts-cards"
ARGUMENTS = re.compile(r"\n( +)(?:args|value):\n((?:\1- .*\n)+)")  # of each container that serves


def text(name):
    return (FOLDER / name).read_text()


def arguments(manifest):
    return [[line.strip()[2:] for line in block.splitlines()] for _, block in ARGUMENTS.findall(manifest)]


def named(flags):
    return {flag.split("=")[0][2:]: flag.partition("=")[2] for flag in flags}


class Manifests(Case):
    def arguments(self):
        """Of the container that serves."""
        return arguments(text("deployment.yaml"))[0]

    def test_the_servers_flags_are_the_programs(self):
        command, model, *flags = self.arguments()
        self.assertEqual((command, model), ("serve", "openai/gpt-oss-20b"))
        flags = [flag.replace("--backend=cuda", "--backend=cpu") for flag in flags]  # a card need not be here
        settings = self.ok("serve", TINY, *flags, "--print-config", "--json").json()
        for name, value in named(flags).items():
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

    def test_the_service_sets_no_variables_in_pods(self):
        """Kubernetes would give them NIBBLE_PORT=tcp://…, which is no port for the program."""
        self.assertIn("\n  name: nibble\n", text("service.yaml"))
        for manifest in (text("deployment.yaml"), TwoHosts.group):
            pods = manifest.count("terminationGracePeriodSeconds")
            self.assertEqual(manifest.count("enableServiceLinks: false"), pods)

    def test_every_manifest_is_listed(self):
        listed = re.search(r"resources: \[(.*)\]", text("kustomization.yaml"))[1].split(", ")
        self.assertEqual(sorted(listed), sorted(f.name for f in FOLDER.glob("*.yaml") if f.name != "kustomization.yaml"))


class TwoHosts(Case):
    """A LeaderWorkerSet: its variables are what the program takes a rank from."""
    group = (TWO_HOSTS / "group.yaml").read_text()

    def settings(self, rank, flags):
        operators = {"LWS_GROUP_SIZE": re.search(r"\n    size: (\d+)\n", self.group)[1], "LWS_WORKER_INDEX": str(rank),
                     "LWS_LEADER_ADDRESS": "nibble-0.nibble.default"}
        env = {name: operators[value] for name, value in re.findall(r"{name: (\w+), value: \$\((\w+)\)}", self.group)}
        return self.ok("serve", TINY, *flags, "--print-config", "--json", env=os.environ | env).json()

    def test_each_pods_flags_are_the_programs_and_its_variables_make_it_a_rank(self):
        pods = arguments(self.group)
        self.assertEqual(len(pods), 2)
        for rank, (command, model, *flags) in enumerate(pods):
            self.assertEqual((command, model), ("serve", "openai/gpt-oss-20b"))
            settings = self.settings(rank, flags)
            for name, value in named(flags).items():
                self.assertEqual(str(settings[name]["value"]), value or "true", name)
            self.assertEqual([str(settings[name]["value"]) for name in ("nnodes", "node-rank", "master-addr")],
                             ["2", str(rank), "nibble-0.nibble.default"])

    def test_what_ranks_must_have_alike_is_alike(self):
        leader, worker = (named(flags[2:]) for flags in arguments(self.group))
        for name in ("backend", "cpu-isa", "master-port"):
            self.assertEqual(leader[name], worker[name], name)
        self.assertIn("headless", worker)

    def test_ports_probes_and_grace_fit_the_flags(self):
        leader = named(arguments(self.group)[0][2:])
        self.assertEqual(set(re.findall(r"containerPort: (\d+)", self.group)), {leader["port"], leader["master-port"]})
        self.assertEqual(re.findall(r"path: (/health)", self.group), ["/health"] * 3)
        for grace in re.findall(r"terminationGracePeriodSeconds: (\d+)", self.group):
            self.assertGreater(int(grace), int(leader["shutdown-timeout"]))

    def test_the_overlay_takes_the_deployments_place_and_serves_the_leader(self):
        overlay = (TWO_HOSTS / "kustomization.yaml").read_text()
        self.assertIn("resources: [../kubernetes, group.yaml]", overlay)
        self.assertEqual(sorted(f.name for f in TWO_HOSTS.iterdir()), ["group.yaml", "kustomization.yaml"])
        self.assertRegex(overlay, r"\$patch: delete\n +apiVersion: apps/v1\n +kind: Deployment\n +metadata: {name: nibble}")
        self.assertIn('leaderworkerset.sigs.k8s.io/worker-index: "0"', overlay)
        self.assertIn("claimName: nibble-models", self.group)
        self.assertIn("name: nibble-models", text("models.yaml"))

    def test_the_overlay_with_cards_changes_the_backend_and_the_model_alone(self):
        """Of a card none of its flags needs to be here but --backend."""
        overlay = (TWO_CARDS / "kustomization.yaml").read_text()
        self.assertIn("resources: [../kubernetes-two-hosts]", overlay)
        pods, changed = arguments(self.group), arguments(overlay)
        self.assertEqual(len(changed), 2)
        for rank, (before, (command, model, *flags)) in enumerate(zip(pods, changed)):
            self.assertEqual((command, model), ("serve", "openai/gpt-oss-120b"))
            host = named(before[2:])
            del host["cpu-isa"]
            self.assertEqual(named(flags), host | {"backend": "cuda"})
            settings = self.settings(rank, [flag.replace("--backend=cuda", "--backend=cpu") for flag in flags])
            self.assertEqual([settings[name]["value"] for name in ("nnodes", "node-rank")], ["2", str(rank)])
        paths = re.findall(r"path: (\S+)", overlay)
        for template in ("leaderTemplate", "workerTemplate"):
            for part in ("containers/0/args", "initContainers/0/args", "containers/0/resources"):
                self.assertIn(f"/spec/leaderWorkerTemplate/{template}/spec/{part}", paths)
        self.assertEqual(overlay.count("value: [pull, openai/gpt-oss-120b]"), 2)
        self.assertRegex(overlay, r"- name: nibble\n +newTag: cuda\b")  # the other folder's image is the CPU product


class Containers(Case):
    """compose.yaml, and the commands of docs/docker.md and docs/install.md."""
    compose, page = ((SOURCE / name).read_text() for name in ("compose.yaml", "docs/docker.md"))

    def test_models_are_mounted_where_the_image_looks_for_them(self):
        homes = set(re.findall(r"HF_HOME=(\S+)", (SOURCE / "Dockerfile").read_text()))
        self.assertEqual(len(homes), 1)
        for text_, at_least in (self.compose, 1), (self.page, 2):
            mounts = re.findall(r"huggingface\}?:(/[\w/]+)", text_)
            self.assertGreaterEqual(len(mounts), at_least)
            self.assertEqual(set(mounts), homes)

    def test_every_setting_reaches_the_server_of_compose(self):
        self.assertIn("env_file: [{path: .env, required: false}]", self.compose)
        flags = re.findall(r"`NIBBLE_([A-Z_]+)(?:=\w+)?`", self.page)
        self.assertIn("MAX_MODEL_LEN", flags)
        settings = self.ok("serve", TINY, "--print-config", "--json").json()
        self.assertLessEqual({flag.lower().replace("_", "-") for flag in flags} - {"port"}, settings.keys() | {"api-key"})

    def test_the_services_lines_are_settings_of_the_program(self):
        lines = re.search(r"serve\.toml <<END\n(.*?)END\n", (SOURCE / "docs/install.md").read_text(), re.S)[1]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "serve.toml")
            file.write_text(re.sub(r'model = ".*"', f'model = "{TINY}"', lines))
            settings = self.ok("serve", "--config", file, "--print-config", "--json").json()
        self.assertEqual((settings["model"]["value"], settings["pull"]["value"]), (str(TINY), "true"))


if __name__ == "__main__":
    support.main()
