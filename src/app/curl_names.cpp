// The names that the program asks of libcurl.so.4, as a library to link with, never to run. Debian's own has them under
// versions (CURL_OPENSSL_4) that Fedora's and others' have not, which each start would complain about there. A name
// that is missing here is found with its version again, which tools/check_package.py tells.
extern "C" {
void curl_easy_cleanup() {}
void curl_easy_getinfo() {}
void curl_easy_init() {}
void curl_easy_perform() {}
void curl_easy_reset() {}
void curl_easy_setopt() {}
void curl_easy_strerror() {}
void curl_free() {}
void curl_getdate() {}
void curl_global_cleanup() {}
void curl_global_init() {}
void curl_slist_append() {}
void curl_slist_free_all() {}
void curl_url() {}
void curl_url_cleanup() {}
void curl_url_get() {}
void curl_url_set() {}
}
