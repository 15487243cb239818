// Signatures of Android that Load.kt calls.
package android.os

object Build {
    @JvmField val SOC_MODEL: String = "SM8650"

    object VERSION {
        @JvmField val SDK_INT: Int = 34
    }
}
