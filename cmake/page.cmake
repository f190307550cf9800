# nibble_embed_page(<page.cpp>): tells the source where the chat page is; the object follows the page's changes.
function(nibble_embed_page source)
  set(page ${CMAKE_SOURCE_DIR}/src/server/page/chat.html)
  set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS NIBBLE_CHAT_PAGE_FILE="${page}" OBJECT_DEPENDS ${page})
endfunction()
