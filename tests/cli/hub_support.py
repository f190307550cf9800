"""A stand-in for Hugging Face's Hub on this machine: its API, its redirects to another host, and what goes wrong with both. Standard library only."""
import hashlib
import http.server
import json
import re
import ssl
import threading
import time
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FOREVER = 10**9


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, files, commit=COMMIT, info=None):
        self.files, self.commit, self.info = files, commit, info or {}

    def is_large(self, path):
        return path.endswith((".safetensors", ".gguf", ".bin")) or len(self.files[path]) > 1_000_000

    def digest(self, path):
        data = self.files[path]
        return hashlib.sha256(data).hexdigest() if self.is_large(path) else git_sha1(data)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    @property
    def hub(self):
        return self.server.hub

    def answer(self, status, body=b"", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.hub.log.append((self.server.name, self.command, self.path, dict(self.headers)))
        try:
            url = urllib.parse.urlsplit(self.path)  # whole, where we are the proxy
            if url.path.startswith("/cdn/"):
                _, _, repo, path = url.path.split("/", 3)
                repo, path = urllib.parse.unquote(repo), urllib.parse.unquote(path)
                return self.data(path, self.hub.repos[repo].files[path])
            return self.api(url)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def fault(self, path):
        """The next thing that goes wrong with this file; None once all has."""
        with self.hub.lock:
            left = self.hub.faults.get(path, [])
            if not left:
                return None
            name, times = left[0] if isinstance(left[0], tuple) else (left[0], 1)
            left[0] = (name, times - 1)
            if times <= 1:
                left.pop(0)
            return name

    def refused(self, fault):
        """Answers a fault that has no data; whether it was one."""
        if fault in ("500", "503", "404"):
            self.answer(int(fault))
        elif fault == "429":
            self.answer(429, Retry_After=1)
        elif fault == "429 for long":
            self.answer(429, Retry_After=3600)
        elif fault == "stall":
            time.sleep(self.hub.stall_s)
            self.answer(503, Retry_After=0)
        else:
            return False
        return True

    def api(self, url):
        hub = self.hub
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", url.path) or re.fullmatch(r"/([^/]+/[^/]+)/(resolve)/([^/]+)/(.+)", url.path)
        if not match:
            return self.answer(404, {"error": "not found"})
        name, what, revision = match[1], match[2], urllib.parse.unquote(match[3])
        authorized = self.headers.get("Authorization") == f"Bearer {hub.token}"
        if name in hub.moved:
            return self.answer(307, Location=self.path.replace(name, hub.moved[name]))
        if name in hub.gated and not authorized:
            return self.answer(401 if not self.headers.get("Authorization") else 403, {"error": "gated"}, X_Error_Code="GatedRepo")
        if self.headers.get("Authorization") and not authorized:
            return self.answer(401, {"error": "Invalid credentials"})
        if name not in hub.repos:
            return self.answer(401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        repo = hub.repos[name]
        if revision not in ("main", "v1", "refs/pr/1", repo.commit):
            return self.answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        if what == "resolve":
            return self.resolve(name, repo, urllib.parse.unquote(match[4]))
        if self.refused(self.fault("api")):
            return None
        if what == "revision":
            return self.answer(200, {"id": name, "sha": repo.commit, "siblings": [{"rfilename": path} for path in repo.files], **repo.info})
        return self.tree(name, repo, urllib.parse.parse_qs(url.query))

    def tree(self, name, repo, query):
        at = int(query.get("cursor", ["0"])[0])
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "original"}] if at == 0 else []
        paths = sorted(repo.files)
        for path in paths[at:at + self.hub.page]:
            size = self.hub.listed_size.get(path, len(repo.files[path]))
            entry = {"type": "file", "path": path, "size": size, "oid": git_sha1(repo.files[path])}
            if repo.is_large(path):
                entry["lfs"] = {"oid": repo.digest(path), "size": size, "pointerSize": 130}
            entries.append(entry)
        more = {}
        if at + self.hub.page < len(paths):
            more["Link"] = f'<{self.hub.url}/api/models/{name}/tree/{repo.commit}?recursive=true&cursor={at + self.hub.page}>; rel="next"'
        return self.answer(200, self.hub.tree_override or entries, **more)

    def resolve(self, name, repo, path):
        if path not in repo.files:
            return self.answer(404, X_Error_Code="EntryNotFound")
        common = {"X_Repo_Commit": repo.commit}
        if not repo.is_large(path):
            return self.data(path, repo.files[path], ETag=f'"{repo.digest(path)}"', **common)
        return self.answer(302, Location=f"{self.hub.cdn_url}/cdn/{urllib.parse.quote(name, safe='')}/{urllib.parse.quote(path)}", ETag=f'"{repo.digest(path)}"',
                           X_Linked_Etag=f'"{repo.digest(path)}"', X_Linked_Size=len(repo.files[path]), **common)

    def data(self, path, data, **headers):
        fault = self.fault(path) if self.command == "GET" else None
        if self.refused(fault):
            return None
        status, start, total = 200, 0, len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and fault != "no ranges":
            start = int(asked[1])
            end = min(int(asked[2] or total - 1), total - 1)
            if start >= total:
                return self.answer(416)
            data, status = data[start:end + 1], 206
            headers["Content_Range"] = f"bytes {start}-{end}/{total + (7 if fault == 'other total' else 0)}"
        if fault == "wrong":
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault == "longer":
            return self.answer(status, data + b"x" * 100, **headers)
        if fault in ("cut", "cut late"):  # promised and not sent
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data[:len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            return None
        if self.hub.bytes_per_s and self.command == "GET":
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            piece = max(self.hub.bytes_per_s // 20, 1)
            for at in range(0, len(data), piece):
                self.wfile.write(data[at:at + piece])
                time.sleep(0.05)
            return None
        return self.answer(status, data, **headers)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # who hung up


class Hub:
    """Two servers: the Hub and where it sends for large files."""

    def __init__(self, certificate=None):
        self.certificate = certificate  # (certificate, key): the Hub speaks HTTPS, where it sends to does not
        self.repos, self.gated, self.moved, self.token = {}, set(), {}, "hf_secret"
        self.faults, self.listed_size, self.tree_override = {}, {}, None
        self.page, self.bytes_per_s, self.stall_s = 1000, 0, 60
        self.log, self.lock = [], threading.Lock()
        self.servers = [self.start("hub"), self.start("cdn")]
        self.url, self.cdn_url = (f"http{'s' if certificate and s.name == 'hub' else ''}://127.0.0.1:{s.server_address[1]}" for s in self.servers)

    def start(self, name):
        server = Server(("127.0.0.1", 0), Handler)
        server.hub, server.name = self, name
        if self.certificate and name == "hub":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, name, files, **more):
        self.repos[name] = Repo(files, **more)
        return self.repos[name]

    def add_folder(self, name, folder, **more):
        return self.add(name, {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}, **more)

    def gets(self, path):
        """Requests for the bytes of a file."""
        return [(server, headers) for server, method, url, headers in self.log
                if method == "GET" and urllib.parse.unquote(url).endswith("/" + path) and not (server == "hub" and self.large(path))]

    def large(self, path):
        return any(path in repo.files and repo.is_large(path) for repo in self.repos.values())
