# What `cmake --install` and so every package and image holds. The model comes without what only its tests read.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
install(TARGETS nibble)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/models/nibble-tiny DESTINATION share/nibble/models
  PATTERN goldens.json EXCLUDE)
# What level 5 of nibble verify finds by itself.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/bench/baselines DESTINATION share/nibble FILES_MATCHING PATTERN "*.json"
  PATTERN shared EXCLUDE)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION share/doc/nibble)
# What --help and messages call docs/…, with all that its pages link to below it.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION share/doc/nibble)
install(CODE "execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/notices.py COMMAND_ERROR_IS_FATAL ANY
  OUTPUT_FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/nibble/THIRD-PARTY-NOTICES\")")
# The program prints its manual and completions itself.
foreach(page "man:share/man/man1/nibble.1" "completion bash:share/bash-completion/completions/nibble"
        "completion zsh:share/zsh/site-functions/_nibble" "completion fish:share/fish/vendor_completions.d/nibble.fish")
  string(REGEX MATCH "^([^:]*):(.*/)([^/]*)$" _ ${page})
  install(CODE "set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_MATCH_2}\")
    file(MAKE_DIRECTORY \"\${folder}\")
    execute_process(COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} \"$<TARGET_FILE:nibble>\" ${CMAKE_MATCH_1} COMMAND_ERROR_IS_FATAL ANY OUTPUT_FILE \"\${folder}${CMAKE_MATCH_3}\")")
endforeach()
