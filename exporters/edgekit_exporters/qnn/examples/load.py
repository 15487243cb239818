"""Loads the context binary beside this file on Qualcomm's HTP and runs it once; the graph itself where that cannot be.

    python load.py                 # zeros as inputs, shapes of the outputs as result

Needs numpy, onnxruntime and onnxruntime-qnn: Qualcomm Linux, Windows on Arm, or the simulator on x86-64 Linux.
"""

import json
import os
import platform
from typing import Any, Dict

import numpy as np
import onnxruntime

HERE = os.path.dirname(os.path.abspath(__file__))
KEY = "ep_compatibility_info.QNNExecutionProvider"
SIMULATED = platform.machine() in ("x86_64", "AMD64")


def chip() -> str:
    """Return the name that the chip has for itself: the plugin loads a binary of another one without a word."""
    try:
        with open("/sys/devices/soc0/machine", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def choose(facts: Dict[str, Any]) -> Dict[str, Any]:
    """Return which of the package's binaries is for this chip; the first when none is."""
    every = [facts, *facts.get("others", ())]
    return next((one for one in every if any(name.lower() in chip().lower() for name in one["soc"])), facts)


def open_context(facts: Dict[str, Any]) -> Any:
    """Return a session on the HTP; RuntimeError when the binary is not for this chip."""
    import onnxruntime_qnn

    names = facts["soc"]
    if not SIMULATED and not any(name.lower() in chip().lower() for name in names):
        raise RuntimeError("the binary is for {}, this chip is '{}'".format(" or ".join(names), chip()))
    name = "QNNExecutionProvider"
    onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "0" if facts["refused"] else "1")
    provider = {"backend_type": "htp", "offload_graph_io_quantization": "0"}
    if SIMULATED:
        provider["soc_model"] = str(facts["soc_model"])
    options.add_provider_for_devices(devices[:1], provider)
    session = onnxruntime.InferenceSession(os.path.join(HERE, facts["model"]), options, enable_fallback=0)
    session.disable_fallback()
    told = session.get_modelmeta().custom_metadata_map.get(KEY, "")
    if told != facts["compatibility"]:
        raise RuntimeError("the binary says '{}', the package '{}'".format(told, facts["compatibility"]))
    return session


def main() -> None:
    """Run the model once."""
    with open(os.path.join(HERE, "context.json"), encoding="utf-8") as file:
        facts = json.load(file)
    try:
        session = open_context(choose(facts))
    except (ImportError, RuntimeError) as error:
        print("not on the HTP:", error)
        session = onnxruntime.InferenceSession(os.path.join(HERE, "model.onnx"), providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}
    feed = {
        entry.name: np.zeros(entry.shape, types.get(entry.type, entry.type[len("tensor(") : -1]))
        for entry in session.get_inputs()
    }
    for entry, value in zip(session.get_outputs(), session.run(None, feed)):
        print(entry.name, value.dtype, value.shape)


if __name__ == "__main__":
    main()
