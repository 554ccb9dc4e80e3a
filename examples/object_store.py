"""A run whose checkpoints are in a store that speaks S3. A server on this machine stands in for the store.

    python examples/object_store.py 200

Needs the extras ``s3`` and ``dev``. With a store of your own, one option is all:

    holdfast run --checkpoints s3://BUCKET/PREFIX -- python train.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "examples"
CHECKPOINTS = f"s3://{BUCKET}/own-state"


def main(steps: int) -> int:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # Credentials come from the environment or from the usual files, never from the URL.
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_ACCESS_KEY_ID="example",
        AWS_SECRET_ACCESS_KEY="example",
        AWS_DEFAULT_REGION="us-east-1",
    )
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    script = Path(__file__).with_name("own_state.py")
    try:
        with tempfile.TemporaryDirectory() as directory:
            run = ["run", "--directory", directory, "--checkpoints", CHECKPOINTS, "--checkpoint-every", "50"]
            code = holdfast(*run, "--", sys.executable, str(script), str(steps))
            return code or holdfast("checkpoint", "verify", "--all", "--checkpoints", CHECKPOINTS)
    finally:
        server.stop()


def holdfast(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "holdfast_cli", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
