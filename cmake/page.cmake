# The chat page, one document without any other file: chat.html with its style sheets and scripts put in.

# Run as a script: cmake -DPAGE=<chat.html> -DOUT=<file> -P page.cmake; <file>.gz is the same, smaller
if(CMAKE_SCRIPT_MODE_FILE)
  get_filename_component(folder "${PAGE}" DIRECTORY)
  file(READ "${PAGE}" page)
  string(REGEX MATCHALL "<link rel=\"stylesheet\" href=\"[^\"]+\">|<script src=\"[^\"]+\"></script>" tags "${page}")
  foreach(tag IN LISTS tags)
    string(REGEX MATCH "(href|src)=\"([^\"]+)\"" _ "${tag}")
    file(READ "${folder}/${CMAKE_MATCH_2}" part)
    if(tag MATCHES "^<link")
      string(REPLACE "${tag}" "<style>\n${part}</style>" page "${page}")
    else()
      # What would end the script, or hide its end, in HTML; the same to JavaScript.
      string(REPLACE "</script" "\\x3C/script" part "${part}")
      string(REPLACE "<!--" "\\x3C!--" part "${part}")
      string(REPLACE "${tag}" "<script>\n${part}</script>" page "${page}")
    endif()
  endforeach()
  file(WRITE "${OUT}" "${page}")
  set(ENV{SOURCE_DATE_EPOCH} 0)  # no time in it: the same page, the same bytes
  file(ARCHIVE_CREATE OUTPUT "${OUT}.gz" PATHS "${OUT}" FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
  return()
endif()

# nibble_embed_page(<page.cpp>): tells the source where the chat page is; the object follows the page's changes.
function(nibble_embed_page source)
  set(page ${CMAKE_SOURCE_DIR}/src/server/page/chat.html)
  set(joined ${CMAKE_CURRENT_BINARY_DIR}/chat.html)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})  # which names each part
  file(GLOB parts ${CMAKE_SOURCE_DIR}/src/server/page/* ${CMAKE_SOURCE_DIR}/third_party/katex/*.js
       ${CMAKE_SOURCE_DIR}/third_party/highlight.js/*.js ${CMAKE_SOURCE_DIR}/third_party/stix/*.css)
  set(join ${CMAKE_SOURCE_DIR}/cmake/page.cmake)
  add_custom_command(OUTPUT ${joined} ${joined}.gz COMMAND ${CMAKE_COMMAND} -DPAGE=${page} -DOUT=${joined} -P ${join}
                     DEPENDS ${parts} ${join} VERBATIM)
  set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS NIBBLE_CHAT_PAGE_FILE="${joined}" OBJECT_DEPENDS "${joined};${joined}.gz")
endfunction()
