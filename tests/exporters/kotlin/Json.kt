// Signatures of org.json that Load.kt calls.
package org.json

class JSONObject(@Suppress("UNUSED_PARAMETER") text: String) {
    fun getString(name: String): String = name
    fun getJSONArray(name: String): JSONArray = JSONArray(name)
    fun optJSONArray(name: String): JSONArray? = JSONArray(name)
}

class JSONArray(private val text: String) {
    fun length(): Int = 1
    fun getString(index: Int): String = text + index
    fun getJSONObject(index: Int): JSONObject = JSONObject(text + index)
}
