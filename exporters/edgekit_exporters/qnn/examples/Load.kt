// Loads the context binary on an Android phone with a Snapdragon; the graph itself where the chip is another one.
//
// Gradle: implementation("com.microsoft.onnxruntime:onnxruntime-android-qnn:<the version of manifest.json or later>")
// Put model.onnx, the model_ctx*.onnx, their .bin and context.json into the app's files folder: each binary must lie
// beside the graph that names it. This file is an example to start from: edgekit's tests compile it against the signatures
// that it calls, where a Kotlin compiler is installed; it has not run on a phone.

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import android.os.Build
import org.json.JSONObject
import java.io.File

fun openModel(folder: File, libraries: String): OrtSession {
    val environment = OrtEnvironment.getEnvironment()
    val first = JSONObject(File(folder, "context.json").readText())
    val others = first.optJSONArray("others")
    val every = listOf(first) + List(others?.length() ?: 0) { others!!.getJSONObject(it) }
    // The provider loads a binary of any chip without a word: compare before, not after. SOC_MODEL is there from API 31.
    val facts = every.firstOrNull { Build.VERSION.SDK_INT >= 31 && isFor(it, Build.SOC_MODEL) }
    if (facts == null) return environment.createSession(File(folder, "model.onnx").path)
    val options = OrtSession.SessionOptions()
    // Nodes that the compiler left to the CPU run there; where it left none, none may fall there in silence.
    options.addConfigEntry("session.disable_cpu_ep_fallback", if (facts.getJSONArray("refused").length() > 0) "0" else "1")
    // libraries: context.applicationInfo.nativeLibraryDir
    val htp = mapOf("backend_path" to "$libraries/libQnnHtp.so", "htp_performance_mode" to "burst")
    options.addQnn(htp + mapOf("offload_graph_io_quantization" to "0"))
    val session = environment.createSession(File(folder, facts.getString("model")).path, options)
    val told = session.metadata.customMetadata[COMPATIBILITY]
    check(told == facts.getString("compatibility")) { "the binary is of '$told': another file than the package's" }
    return session
}

private const val COMPATIBILITY = "ep_compatibility_info.QNNExecutionProvider"

private fun isFor(facts: JSONObject, chip: String): Boolean {
    val names = facts.getJSONArray("soc")
    return (0 until names.length()).any { chip.contains(names.getString(it), ignoreCase = true) }
}
