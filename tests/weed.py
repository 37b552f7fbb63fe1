"""A real S3 server for tests: SeaweedFS's `weed mini` on free ports of 127.0.0.1, in a folder of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minio import Minio
from minio.error import MinioException
from urllib3.exceptions import HTTPError

ACCESS_KEY, SECRET_KEY = "test-access-key", "test-secret-key"


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = "us-east-1"

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs to reach it."""
        return {
            "ROLECAST_S3_ENDPOINT": self.endpoint,
            "ROLECAST_S3_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    @property
    def client(self) -> Minio:
        host = self.endpoint.removeprefix("http://")
        return Minio(endpoint=host, access_key=self.access_key, secret_key=self.secret_key, secure=False, region=self.region)

    def make_bucket(self, name: str) -> str:
        self.client.make_bucket(bucket_name=name)
        return name


@contextmanager
def weed_running(folder: Path) -> Iterator[S3Server]:
    """Starts the server and stops it at the end."""
    data, config = folder / "data", folder / "s3.json"
    data.mkdir(parents=True)
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    names = ("s3.port", "master.port", "filer.port", "volume.port", "admin.port")
    ports = dict(zip([*names, *(f"{name}.grpc" for name in names)], free_ports(2 * len(names)), strict=True))
    # Every bucket takes a volume; by default their number is the disk's free GiB, and a session's last buckets are answered 500.
    command = [
        str(Path(sys.executable).with_name("weed")), "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false",
        "-admin.ui=false", "-volume.max=1000", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
        f"-s3.config={config}", "-s3.allowDeleteBucketNotEmpty=false", *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    server = S3Server(f"http://127.0.0.1:{ports['s3.port']}")
    try:
        _wait(server, process, folder / "weed.log")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _wait(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a bucket can be made and written to: the volume server joins after S3 answers."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if not server.client.bucket_exists(bucket_name="ready"):
                server.make_bucket("ready")
            server.client.put_object(bucket_name="ready", object_name="o", data=open("/dev/null", "rb"), length=0)  # noqa: SIM115
            return
        except (MinioException, HTTPError):
            time.sleep(0.1)
    raise RuntimeError(f"weed did not start:\n{log.read_text()[-3000:]}")
