# nibble_unity(<variable> NAME … BELOW <folder> SOURCES …): the sources, up to 36 to a file that includes them, spread evenly. Most of
# what a file costs to compile is headers and templates that its neighbours need too (tools/compile_cost.py). A source with flags
# of its own stays alone; so do all with -DNIBBLE_UNITY=OFF. The presets share the files, so that ccache knows them again.
option(NIBBLE_UNITY "Compile a room's sources up to 36 at a time" ON)
set(NIBBLE_UNITY_DIR ${CMAKE_BINARY_DIR}/unity CACHE PATH "Where the files that include them are written")
function(nibble_unity variable)
  cmake_parse_arguments(L "" "NAME;BELOW" "SOURCES" ${ARGN})
  set(files)
  set(together)
  foreach(source IN LISTS L_SOURCES)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    if(NOT NIBBLE_UNITY OR definitions OR options)
      list(APPEND files ${source})
    else()
      list(APPEND together ${source})
    endif()
  endforeach()
  list(LENGTH together count)
  if(count EQUAL 1)
    list(APPEND files ${together})
    set(count 0)
  endif()
  math(EXPR units "(${count} + 35) / 36")
  set(unit 0)
  while(unit LESS units)
    math(EXPR from "${count} * ${unit} / ${units}")
    math(EXPR held "${count} * (${unit} + 1) / ${units} - ${from}")
    list(SUBLIST together ${from} ${held} sources)
    set(text)
    foreach(source IN LISTS sources)
      get_filename_component(path ${source} ABSOLUTE)
      file(RELATIVE_PATH name ${L_BELOW} ${path})
      string(APPEND text "#include \"${name}\"\n")
    endforeach()
    set(file ${NIBBLE_UNITY_DIR}/${L_NAME}_${unit}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}")
    list(APPEND files ${file})
    math(EXPR unit "${unit} + 1")
  endwhile()
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# nibble_room(<name> SOURCES … [DEPS …] [TESTS …] [OPTIMIZE <flag>] [ONE_BY_ONE] [BY_ISA]): a room's library and its unit-test
# program. The sources are compiled as unity sources, so names in the anonymous namespaces of a room differ; ONE_BY_ONE: not here.
# OPTIMIZE: in a release, for code that no token waits for.
add_library(nibble_flags INTERFACE)
# An else hangs where it is indented, since the formatter indents; GoogleTest's macros have one.
target_compile_options(nibble_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Wno-dangling-else;$<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>>
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
  cmake_parse_arguments(ROOM "ONE_BY_ONE;BY_ISA" "OPTIMIZE" "SOURCES;DEPS;TESTS" ${ARGN})
  if(NOT ROOM_ONE_BY_ONE)
    nibble_unity(ROOM_SOURCES NAME ${name} BELOW ${CMAKE_SOURCE_DIR}/src SOURCES ${ROOM_SOURCES})
  endif()
  add_library(nibble_${name} STATIC ${ROOM_SOURCES})
  target_link_libraries(nibble_${name} PUBLIC nibble_flags fmt::fmt ${ROOM_DEPS})
  if(ROOM_OPTIMIZE)
    target_compile_options(nibble_${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:${ROOM_OPTIMIZE}>)
  endif()
  if(NIBBLE_BUILD_TESTS AND ROOM_TESTS)
    set(by_isa)
    if(ROOM_BY_ISA)
      set(by_isa BY_ISA)
    endif()
    nibble_test(${name}_test SOURCES ${ROOM_TESTS} DEPS nibble_${name} ${by_isa})
  endif()
endfunction()

# What tests that depend on the instruction set run as, besides what the machine has: values of NIBBLE_CPU_MASK
# (docs/measuring.md).
set(NIBBLE_CPU_MASKS)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(NIBBLE_CPU_MASKS avx2)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(NIBBLE_CPU_MASKS dotprod baseline)
endif()

set(NIBBLE_TEST_SECONDS 600)  # of one test
if(CMAKE_CROSSCOMPILING)
  set(NIBBLE_TEST_SECONDS 3600)  # an emulator takes ten times as long
endif()
math(EXPR NIBBLE_MASKED_SECONDS "2 * ${NIBBLE_TEST_SECONDS}")

# nibble_masked_tests(<name> ENVIRONMENT … COMMAND …): a test for each of NIBBLE_CPU_MASKS.
function(nibble_masked_tests name)
  cmake_parse_arguments(T "" "" "COMMAND;ENVIRONMENT" ${ARGN})
  foreach(mask IN LISTS NIBBLE_CPU_MASKS)
    add_test(NAME ${name}_as_${mask} COMMAND ${T_COMMAND})
    set_tests_properties(${name}_as_${mask} PROPERTIES ENVIRONMENT "NIBBLE_CPU_MASK=${mask};${T_ENVIRONMENT}" TIMEOUT ${NIBBLE_MASKED_SECONDS})
  endforeach()
endfunction()

# nibble_test(<name> SOURCES … DEPS … [LABEL …] [BY_ISA] [ONE_BY_ONE]): tests find their data through NIBBLE_SOURCE_DIR. BY_ISA: they
# depend on the CPU backend's instruction set, heed NIBBLE_CPU_MASK, and run under each of NIBBLE_CPU_MASKS, too. Those of
# label gpu heed NIBBLE_CUDA_ARCH. ONE_BY_ONE: no unity sources here, nor for label gpu. Tests are compiled more often than
# they run, hence -O1.
function(nibble_test name)
  cmake_parse_arguments(T "BY_ISA;ONE_BY_ONE" "LABEL" "SOURCES;DEPS" ${ARGN})
  if(NOT T_ONE_BY_ONE AND NOT "${T_LABEL}" STREQUAL gpu)
    nibble_unity(T_SOURCES NAME ${name} BELOW ${CMAKE_SOURCE_DIR}/src SOURCES ${T_SOURCES})
  endif()
  add_executable(${name} ${T_SOURCES})
  target_compile_options(${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
  target_link_libraries(${name} PRIVATE ${T_DEPS} GTest::gmock GTest::gtest)
  if(T_BY_ISA)
    target_link_libraries(${name} PRIVATE cpu_mask_main)
    nibble_masked_tests(${name} COMMAND ${name} --gtest_brief=1)
  elseif("${T_LABEL}" STREQUAL gpu)
    target_link_libraries(${name} PRIVATE card_mask_main)
  else()
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  target_compile_definitions(${name} PRIVATE NIBBLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT ${NIBBLE_TEST_SECONDS} LABELS "${T_LABEL}")
endfunction()
