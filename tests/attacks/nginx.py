"""A real nginx in front of the gateway, with eight usual configurations. Debian's package is unpacked into `.cache`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.attacks.target import wait_for_port

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "nginx"
INSTALL_S_MAX = 300.0

SERVERS = {
    "plain proxy_pass": "",
    "host of the client": "proxy_set_header Host $host;",
    "host set to localhost": "proxy_set_header Host localhost;",
    "x-real-ip": "proxy_set_header X-Real-IP $remote_addr;",
    "x-forwarded-for": "proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    "headers removed": 'proxy_set_header Host 127.0.0.1; proxy_set_header X-Forwarded-For "";',
    "http/1.1 with keepalive": 'proxy_http_version 1.1; proxy_set_header Connection "";',
    "prefix": "proxy_set_header Host localhost:8642; proxy_buffering off;",
}


def find_nginx() -> str:
    """Return the path of an nginx program, from the system or unpacked from Debian's package."""
    if (installed := shutil.which("nginx")) is not None:
        return installed
    program = CACHE / "usr" / "sbin" / "nginx"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        if _download().returncode != 0:
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, timeout=INSTALL_S_MAX, check=False)
            result = _download()
            if result.returncode != 0:
                raise SystemExit(f"nginx could not be downloaded; install it and try again.\n{result.stderr}")
        [package] = CACHE.glob("nginx_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(CACHE)], timeout=INSTALL_S_MAX, check=True)
    return str(program)


def _download() -> subprocess.CompletedProcess[str]:
    if shutil.which("apt-get") is None:
        raise SystemExit("nginx is needed; install it and try again.")
    return subprocess.run(
        ["apt-get", "download", "nginx"], cwd=CACHE, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
    )


@contextmanager
def nginx_in_front_of(port: int, folder: Path, ports: list[int]) -> Iterator[dict[str, int]]:
    """Run nginx on loopback; yield the port of each configuration."""
    program = find_nginx()
    folder.mkdir()
    servers = dict(zip(SERVERS, ports, strict=True))
    blocks = "\n".join(
        f"server {{ listen 127.0.0.1:{servers[name]}; location / {{ proxy_pass http://127.0.0.1:{port}; {lines} }} }}"
        for name, lines in SERVERS.items()
    )
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr;\n"
        f"events {{ worker_connections 256; }}\n"
        f"http {{ access_log off; {temporary}\n{blocks}\n}}\n"
    )
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        if not all(wait_for_port(each, process) for each in servers.values()):
            raise SystemExit("nginx did not start; see its messages above.")
        yield servers
    finally:
        process.terminate()
        process.wait(10)
