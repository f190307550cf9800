# nibble_room(<name> SOURCES … [DEPS …] [TESTS …]): a room's library and its unit-test program.
add_library(nibble_flags INTERFACE)
target_compile_options(nibble_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor>
  # Errors with the compilers that the tests run with: later ones know other warnings.
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Werror>
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,Clang>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,20>>:-Werror>
  # libstdc++ 12's stable_sort calls what that library deprecates.
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>
  # Constexpr functions of base/ serve the device too; line numbers for compute-sanitizer and profilers.
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Werror=all-warnings;-Xcompiler=-Wall,-Wextra>)
target_include_directories(nibble_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(nibble_flags INTERFACE NIBBLE_VERSION="${PROJECT_VERSION}")
if(NIBBLE_SANITIZE)
  target_compile_options(nibble_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${NIBBLE_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  target_link_options(nibble_flags INTERFACE -fsanitize=${NIBBLE_SANITIZE})
endif()
if(NIBBLE_BUILD_FUZZERS)
  target_compile_options(nibble_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

function(nibble_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPS;TESTS" ${ARGN})
  add_library(nibble_${name} STATIC ${ROOM_SOURCES})
  target_link_libraries(nibble_${name} PUBLIC nibble_flags fmt::fmt ${ROOM_DEPS})
  if(NIBBLE_BUILD_TESTS AND ROOM_TESTS)
    nibble_test(${name}_test SOURCES ${ROOM_TESTS} DEPS nibble_${name})
  endif()
endfunction()

# nibble_test(<name> SOURCES … DEPS … [LABEL …]): tests find their data through NIBBLE_SOURCE_DIR.
function(nibble_test name)
  cmake_parse_arguments(T "" "LABEL" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE NIBBLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600 LABELS "${T_LABEL}")
endfunction()
