// Loads the context binary on an Android phone with a Snapdragon; the graph itself where the chip is another one.
//
// Gradle: implementation("com.microsoft.onnxruntime:onnxruntime-android-qnn:<the version of manifest.json or later>")
// Put model.onnx, model_ctx.onnx, its .bin and context.json into the app's files folder: the binary must lie beside
// model_ctx.onnx. This file is an example to start from; it is not compiled or run by edgekit's tests.

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import android.os.Build
import org.json.JSONObject
import java.io.File

fun openModel(folder: File, libraries: String): OrtSession {
    val environment = OrtEnvironment.getEnvironment()
    val facts = JSONObject(File(folder, "context.json").readText())
    val names = facts.getJSONArray("soc").let { list -> List(list.length()) { list.getString(it) } }
    // The provider loads a binary of any chip without a word: compare before, not after. SOC_MODEL is there from API 31.
    val fits = Build.VERSION.SDK_INT >= 31 && names.any { Build.SOC_MODEL.contains(it, ignoreCase = true) }
    if (!fits) return environment.createSession(File(folder, "model.onnx").path)
    val options = OrtSession.SessionOptions()
    options.addConfigEntry("session.disable_cpu_ep_fallback", "1")
    // libraries: context.applicationInfo.nativeLibraryDir
    options.addQnn(mapOf("backend_path" to "$libraries/libQnnHtp.so", "htp_performance_mode" to "burst"))
    return environment.createSession(File(folder, facts.getString("model")).path, options)
}
