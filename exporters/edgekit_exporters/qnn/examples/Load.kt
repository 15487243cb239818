// Loads the context binary on an Android phone with a Snapdragon; the graph itself where the chip is another one.
//
// Gradle: implementation("com.microsoft.onnxruntime:onnxruntime-android-qnn:<the version of manifest.json or later>")
// Put model.onnx, the model_ctx*.onnx, their .bin and context.json into the app's files folder: each binary must lie
// beside the graph that names it. This file is an example to start from; it is not compiled or run by edgekit's tests.

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
    options.addConfigEntry("session.disable_cpu_ep_fallback", "1")
    // libraries: context.applicationInfo.nativeLibraryDir
    options.addQnn(mapOf("backend_path" to "$libraries/libQnnHtp.so", "htp_performance_mode" to "burst"))
    return environment.createSession(File(folder, facts.getString("model")).path, options)
}

private fun isFor(facts: JSONObject, chip: String): Boolean {
    val names = facts.getJSONArray("soc")
    return (0 until names.length()).any { chip.contains(names.getString(it), ignoreCase = true) }
}
