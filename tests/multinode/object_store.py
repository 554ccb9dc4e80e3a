"""A server that speaks S3, with one bucket: ``object_store.py ADDRESS PORT BUCKET``. Prints a line when it serves."""

import signal
import sys

import boto3
from moto.server import ThreadedMotoServer


def main(address: str, port: int, bucket: str) -> None:
    ThreadedMotoServer(address, port, verbose=False).start()
    boto3.client("s3", endpoint_url=f"http://{address}:{port}").create_bucket(Bucket=bucket)
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
