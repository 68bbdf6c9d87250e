# How every target of the project is made: one function for libraries, one for programs, one for tests.
# Includes are written from the project's root ("kernels/page/page.h"), links are PRIVATE unless said.

set(KVSTOW_INSTALLED_HEADERS include/kvstow)

add_library(kvstow_build_flags INTERFACE)
target_compile_options(
  kvstow_build_flags
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wno-missing-field-initializers>
            $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KVSTOW_WERROR}>>:-Werror>
            $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wthread-safety>)

# Headers of others that most sources of the project include.
set(KVSTOW_COMMON_HEADERS <algorithm> <array> <functional> <map> <memory> <optional> <span> <string> <utility> <vector>
    <absl/status/statusor.h> <absl/strings/str_cat.h>)

# kvstow_precompile(TARGET OF OWNER HEADERS ...): the target OWNER parses these headers once; others, with the same compiler
# flags, and no macro less, reuse that. A bare build takes a third less time so. Preset dev compiles the libraries without
# (CMAKE_DISABLE_PRECOMPILE_HEADERS), so that a source that does not include what it uses fails there.
function(kvstow_precompile target)
  cmake_parse_arguments(ARG "" "OF" "HEADERS" ${ARGN})
  if(target STREQUAL ARG_OF)
    target_precompile_headers(${target} PRIVATE ${ARG_HEADERS})
  else()
    target_precompile_headers(${target} REUSE_FROM ${ARG_OF})
  endif()
  get_target_property(disabled ${target} DISABLE_PRECOMPILE_HEADERS)
  if(NOT disabled)
    # ccache knows by this what a source got from the precompiled header.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
  endif()
endfunction()

# kvstow_library(NAME SOURCES ... [PUBLIC ...] [PRIVATE ...]) makes kvstow_NAME with the alias kvstow::NAME.
function(kvstow_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(kvstow_${name} STATIC ${ARG_SOURCES})
  add_library(kvstow::${name} ALIAS kvstow_${name})
  target_include_directories(
    kvstow_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${KVSTOW_INSTALLED_HEADERS}>)
  target_link_libraries(kvstow_${name} PUBLIC ${ARG_PUBLIC} PRIVATE $<BUILD_INTERFACE:kvstow_build_flags> ${ARG_PRIVATE})
endfunction()

# kvstow_unoptimized(TARGETS ...): Debug builds compile these without the optimiser. They wait for the network and for disks, and
# with AddressSanitizer and UndefinedBehaviorSanitizer they compile in half the time so. They leave out the checks that stand at
# every access to a member: those are 20 to 40 % of a compilation, and AddressSanitizer sees a null pointer and a dead object, too.
function(kvstow_unoptimized)
  foreach(target ${ARGN})
    target_compile_options(
      ${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Debug>>:-O0>
                        $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Debug>>:-fno-sanitize=null,alignment,vptr,object-size>)
  endforeach()
endfunction()

# kvstow_program(NAME SOURCES ... LINK ...) makes build/bin/NAME.
function(kvstow_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE kvstow_build_flags ${ARG_LINK})
endfunction()

# kvstow_test_library(NAME SOURCES ... LINK ...) makes kvstow::NAME: what several test programs share, compiled once.
function(kvstow_test_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  kvstow_library(${name} SOURCES ${ARG_SOURCES} PUBLIC ${ARG_LINK} kvstow::test_paths GTest::gmock GTest::gtest)
endfunction()

# kvstow_precompile_test(TARGET LINK ...): all targets of tests with one level of optimisation share a precompiled header;
# those with a server in their process share another, as they would parse gRPC's headers for ten seconds each. Its owner is
# the first such target: it has the fewest macros.
function(kvstow_precompile_test target)
  set(headers ${KVSTOW_COMMON_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
  if("kvstow::server_fixture" IN_LIST ARGN)
    list(APPEND headers <grpcpp/grpcpp.h> <kvstow/v1/admin.grpc.pb.h> <kvstow/v1/kv_cache.grpc.pb.h>)
  endif()
  get_property(options DIRECTORY PROPERTY COMPILE_OPTIONS)
  string(MD5 key "${options} ${headers}")
  get_property(owner GLOBAL PROPERTY KVSTOW_PRECOMPILED_TESTS_${key})
  if(NOT owner)
    set(owner ${target})
    set_property(GLOBAL PROPERTY KVSTOW_PRECOMPILED_TESTS_${key} ${target})
  endif()
  # The asan preset looks for undefined behaviour in what is tested; in the tests it would cost a quarter of their compile time.
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Debug>>:-fno-sanitize=undefined>)
  target_compile_options(${target} PRIVATE -pthread)  # some get it from a library, and its macro counts
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # in preset dev; tidy, with clang, stays without
    set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS OFF)
  endif()
  kvstow_precompile(${target} OF ${owner} HEADERS ${headers})
endfunction()

# kvstow_test(NAME SOURCES ... LINK ... [LABEL unit|integration|slow] [TIMEOUT s]) makes one GoogleTest program;
# ctest runs each of its tests by itself, in parallel. With KVSTOW_TEST_SHARDS it runs so many processes of the program,
# which share its tests: thousands of processes take longer to start under AddressSanitizer than their tests to run.
# Tests find tests/data, tests/golden and programs by tests/paths.h.
function(kvstow_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;LINK" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  kvstow_program(${name} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK} kvstow::test_paths GTest::gmock GTest::gtest_main)
  set_target_properties(
    ${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests CXX_CLANG_TIDY "")
  kvstow_precompile_test(${name} ${ARG_LINK})
  if(NOT KVSTOW_TEST_SHARDS)
    gtest_discover_tests(
      ${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
    return()
  endif()
  math(EXPR last "${KVSTOW_TEST_SHARDS} - 1")
  foreach(shard RANGE ${last})
    add_test(NAME ${name}.shard_${shard} COMMAND ${name})
    set_tests_properties(
      ${name}.shard_${shard} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 900
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${KVSTOW_TEST_SHARDS};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()

# kvstow_slow_test(NAME PROGRAM FILTER VARIABLE=VALUE...) runs tests of PROGRAM longer than CI does, with these
# variables set; label slow: ctest --preset slow.
function(kvstow_slow_test name program filter)
  add_test(NAME slow.${name} COMMAND ${program} --gtest_filter=${filter})
  set_tests_properties(slow.${name} PROPERTIES LABELS slow TIMEOUT 3600 ENVIRONMENT "${ARGN}")
endfunction()
