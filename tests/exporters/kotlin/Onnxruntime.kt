// Signatures of onnxruntime's Java interface that Load.kt calls (ai.onnxruntime, as documented for 1.2x).
package ai.onnxruntime

class OrtEnvironment private constructor() {
    companion object {
        @JvmStatic fun getEnvironment(): OrtEnvironment = OrtEnvironment()
    }

    fun createSession(@Suppress("UNUSED_PARAMETER") path: String): OrtSession = OrtSession()

    fun createSession(
        @Suppress("UNUSED_PARAMETER") path: String,
        @Suppress("UNUSED_PARAMETER") options: OrtSession.SessionOptions
    ): OrtSession = OrtSession()
}

class OnnxModelMetadata {
    val customMetadata: Map<String, String> = emptyMap()
}

class OrtSession {
    val metadata: OnnxModelMetadata = OnnxModelMetadata()

    class SessionOptions {
        fun addConfigEntry(@Suppress("UNUSED_PARAMETER") key: String, @Suppress("UNUSED_PARAMETER") value: String) {}
        fun addQnn(@Suppress("UNUSED_PARAMETER") options: Map<String, String>) {}
    }
}
