"""A stand-in for Qualcomm AI Hub: its protobuf API over HTTP on this machine. No device stands behind it.

    aihub_stand_in.py FOLDER       # writes FOLDER/port, appends to FOLDER/requests.txt, obeys FOLDER/control.json

`control.json`: `token` (the one that is good), `devices` (name -> attributes), `pending` (answers before a job is
done), `fail` (`compile` or `inference`: such jobs fail), `cut` (how many of the next GETs of a job are cut off),
`layers`, `times` (microseconds of the profile), `wrong` (added to outputs), `rename` (outputs have other names),
`refuse` (an HTTP status for everything).
Models are run with onnxruntime on this CPU; 64-bit integers are cut to 32 as AI Hub does when asked to.
"""

from __future__ import annotations

import io
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import h5py
import numpy as np
from qai_hub import public_api_pb2 as pb
from qai_hub.api_utils import get_type_value_from_str
from qai_hub.util.dataset_entries_converters import dataset_entries_to_h5, h5_to_dataset_entries

FOLDER = Path(sys.argv[1])
WORK: dict[str, dict] = {"models": {}, "datasets": {}, "jobs": {}}


def control() -> dict:
    return json.loads((FOLDER / "control.json").read_text())


def set_control(**changes) -> None:
    (FOLDER / "control.json").write_text(json.dumps({**control(), **changes}))


def new(kind: str, content) -> str:
    name = f"{kind[0]}{len(WORK[kind]) + 1:04}"
    WORK[kind][name] = content
    return name


def saved_model(content: bytes) -> Path:
    """Return where an uploaded model lies: a graph, or a zipped folder of a graph and its weights."""
    home = FOLDER / f"model-{len(list(FOLDER.glob('model-*')))}"
    home.mkdir()
    if content[:2] != b"PK":
        (home / "model.onnx").write_bytes(content)
    else:
        with ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(home)
    return next(home.rglob("*.onnx"))


def infer(job: pb.InferenceJob) -> bytes:
    import onnxruntime

    model, options = WORK["models"][job.model.model_id]["compiled"]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with h5py.File(io.BytesIO(WORK["datasets"][job.dataset.dataset_id]), "r") as file:
        entries = h5_to_dataset_entries(file)
    types = {value.name: value.type for value in session.get_inputs()}
    count = len(next(iter(entries.values())))
    names = [value.name for value in session.get_outputs()]
    outputs: dict[str, list] = {name: [] for name in names}
    for index in range(count):
        feed = {
            name: arrays[index].astype(np.int64) if types[name] == "tensor(int64)" else arrays[index]
            for name, arrays in entries.items()
        }
        for name, array in zip(names, session.run(None, feed), strict=True):
            short = array.astype(np.int32) if array.dtype == np.int64 and "--truncate_64bit_io" in options else array
            outputs[name].append(short + np.asarray(control().get("wrong", 0), short.dtype))
    if control().get("rename"):
        outputs = {f"{name}_other": arrays for name, arrays in outputs.items()}
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        dataset_entries_to_h5(outputs, file)
    return buffer.getvalue()


def profile() -> pb.ProfileDetail:
    told = control()
    detail = pb.ProfileDetail(major_version=1, minor_version=2, execution_time=min(told["times"], default=0))
    detail.after_execution_peak_memory = 5_000_000
    detail.execution_memory.peak.lower, detail.execution_memory.peak.upper = 4_000_000, 6_000_000
    detail.execution_memory.increase.lower, detail.execution_memory.increase.upper = 1, 2
    detail.all_execution_times.extend(told["times"])
    for unit, count in told["layers"].items():
        for index in range(count):
            detail.layer_details.add(name=f"{unit}{index}", compute_unit=pb.ComputeUnit.Value(f"COMPUTE_UNIT_{unit}"))
    return detail


def state(name: str) -> pb.Job:
    """Return a job as it is now; it moves on each time it is asked for."""
    job, entry = pb.Job(), WORK["jobs"][name]
    entry["asked"] += 1
    kind = entry["kind"]
    pending = control().get("pending", 0)
    pending = pending.get(kind, 0) if isinstance(pending, dict) else pending
    part = job.compile_job if kind == "compile" else job.inference_job
    part.CopyFrom(entry["job"])
    setattr(part, f"{kind}_job_id", name)
    if entry["asked"] <= pending:
        part.job_state = pb.JOB_STATE_OPTIMIZING_MODEL if kind == "compile" else pb.JOB_STATE_PROVISIONING_DEVICE
    elif control().get("fail") == kind:
        part.job_state, part.failure_reason = pb.JOB_STATE_FAILED, "the stand-in was told to fail"
    else:
        part.job_state = pb.JOB_STATE_DONE
        if kind == "compile":
            finish_compile(part)
    return job


def finish_compile(part: pb.CompileJob) -> None:
    entry = WORK["models"][part.model.model_id]
    target = entry.setdefault("target", None) or new("models", {})
    entry["target"] = target
    WORK["models"][target]["compiled"] = (saved_model(entry["content"]), part.options)
    part.target_model.model_id, part.target_model.model_type = target, pb.MODEL_TYPE_ONNX
    for spec in part.tensor_type_list.types:
        kept = part.target_tensor_type_list.types.add()
        kept.CopyFrom(spec)
        if "--truncate_64bit_io" in part.options and spec.tensor_type.dtype == get_type_value_from_str("int64"):
            kept.tensor_type.dtype = get_type_value_from_str("int32")


class Service(BaseHTTPRequestHandler):
    """What of the API the client uses."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def _serve(self, method: str) -> None:
        body = self._body()
        path, _, self.query = self.path.partition("?")
        with (FOLDER / "requests.txt").open("a") as log:
            log.write(f"{method} {path}\n")
        if path.startswith("/store/"):
            self._store(method, path.removeprefix("/store/"), body)
            return
        if self.headers.get("Authorization") != f"token {control()['token']}":
            self._send(401, b"", "text/plain")
            return
        if control().get("refuse"):
            self._send(control()["refuse"], b'{"detail": "told to refuse"}', "application/json")
            return
        if method == "GET" and re.search(r"/jobs/\w+/$", path) and control().get("cut", 0):
            set_control(cut=control()["cut"] - 1)
            self.close_connection = True
            self.connection.close()
            return
        words = path.removeprefix("/api/v1/").strip("/").split("/")
        try:
            self._answer(getattr(self, f"_{method.lower()}_{words[0]}")(words[1:], body))
        except KeyError as error:
            self._send(404, json.dumps({"detail": f"not found: {error}"}).encode(), "application/json")

    def _get_devices(self, _, __):
        from urllib.parse import parse_qs

        name = parse_qs(self.query).get("name", [""])[0]
        found = [
            pb.Device(name=known, os="14", attributes=attributes)
            for known, attributes in control()["devices"].items()
            if name in ("", known)
        ]
        return pb.DeviceList(devices=found)

    def _post_models(self, words, body):
        if not words:
            return pb.CreateUpdateResponse(id=new("models", {}))
        return pb.CreateUpdateResponse(id=words[0])

    def _get_models(self, words, _):
        urls = [f"http://127.0.0.1:{self.server.server_port}/store/models/{words[0]}"]
        return pb.FileUploadResponse(
            multipart_url=pb.FileMultipartUploadURL(urls=urls, upload_id="u", max_part_size=1 << 30)
        )

    def _post_datasets(self, words, _):
        return pb.CreateUpdateResponse(id=words[0] if words else new("datasets", b""))

    def _patch_datasets(self, words, _):
        return pb.CreateUpdateResponse(id=words[0])

    def _get_datasets(self, words, _):
        url = f"http://127.0.0.1:{self.server.server_port}/store/datasets/{words[0]}"
        if words[1:] == ["upload_url"]:
            return pb.FileUploadResponse(url=pb.FileUploadURL(url=url, file_field_name="file"))
        if words[1:] == ["download_data"]:
            return pb.FileDownloadResponse(url=pb.FileDownloadURL(url=url, filename="outputs.h5"))
        return pb.Dataset(dataset_id=words[0], permanent=True)

    def _post_jobs(self, _, body):
        job = pb.Job.FromString(body)
        kind = job.WhichOneof("job").removesuffix("_job")
        return pb.CreateUpdateResponse(id=new("jobs", {"kind": kind, "job": getattr(job, f"{kind}_job"), "asked": 0}))

    def _get_jobs(self, words, _):
        if words[1:] != ["result"]:
            return state(words[0])
        job = WORK["jobs"][words[0]]["job"]
        result = pb.InferenceJobResult(inference_job_id=words[0], output_dataset_id=new("datasets", infer(job)))
        if job.is_profiling_on:
            result.detail.CopyFrom(profile())
        return pb.JobResult(inference_job_result=result)

    def _store(self, method: str, place: str, body: bytes) -> None:
        kind, name = place.split("/")
        if method == "GET":
            self._send(200, WORK[kind][name], "application/octet-stream")
            return
        if method == "POST":  # a form with one file in it
            boundary = self.headers["Content-Type"].partition("boundary=")[2].encode()
            body = body.split(b"\r\n\r\n", 1)[1].rsplit(b"\r\n--" + boundary, 1)[0]
        WORK[kind][name] = {"content": body} if kind == "models" else body
        self._send(200, b"", "text/plain", ETag='"whole"')

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, message) -> None:
        self._send(200, message.SerializeToString(), "application/x-protobuf")

    def _send(self, status: int, content: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    (FOLDER / "port.part").write_text(str(server.server_port))
    (FOLDER / "port.part").rename(FOLDER / "port")
    server.serve_forever()
