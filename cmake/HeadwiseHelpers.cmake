# headwise_library(NAME FOLDERS a b LINKS other PACKAGES x::y): the static library headwise_NAME, for users of an installed
# headwise headwise::NAME, of the folders' sources. Folders that are not there are not missed.
function(headwise_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FOLDERS;LINKS;PACKAGES")
  set(HEADWISE_LIBRARY headwise_${name})
  add_library(${HEADWISE_LIBRARY} STATIC)
  add_library(headwise::${name} ALIAS ${HEADWISE_LIBRARY})
  target_compile_features(${HEADWISE_LIBRARY} PUBLIC cxx_std_20)
  set_target_properties(${HEADWISE_LIBRARY} PROPERTIES EXPORT_NAME ${name} CXX_EXTENSIONS OFF
                                                       POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${HEADWISE_LIBRARY} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  list(TRANSFORM arg_LINKS PREPEND headwise_)
  target_link_libraries(${HEADWISE_LIBRARY}
    PUBLIC ${arg_LINKS}
    PRIVATE $<BUILD_INTERFACE:headwise_private> ${arg_PACKAGES}
            $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> $<BUILD_INTERFACE:PkgConfig::hwy>)
  foreach(folder ${arg_FOLDERS})
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt)
      add_subdirectory(${folder})
    endif()
  endforeach()
endfunction()

# headwise_sources(a.cc b.cc): adds this folder's sources to its library, ${HEADWISE_LIBRARY}.
function(headwise_sources)
  target_sources(${HEADWISE_LIBRARY} PRIVATE ${ARGN})
endfunction()

# After so many seconds a test is taken for hung. Sanitizers slow the whole-model tests down more than tenfold.
set(HEADWISE_TEST_SECONDS 900)
set(HEADWISE_TEST_ENVIRONMENT LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/leaks.supp:print_suppressions=0)
set(HEADWISE_SANITIZED 0)
if(HEADWISE_SANITIZE)
  set(HEADWISE_SANITIZED 1)
  set(HEADWISE_TEST_SECONDS 7200)
endif()
if(HEADWISE_SANITIZE MATCHES thread)  # which would sleep for a second at the end of every process
  set(HEADWISE_TEST_ENVIRONMENT
      TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/races.supp:print_suppressions=0:atexit_sleep_ms=0)
endif()

# headwise_test(NAME a_test.cc b_test.cc SLOW Suite.* Other.Test FAR): one GoogleTest program of these files. It links its
# folder's library, outside src all of them. Its tests are labelled quick, but for those that match SLOW: they take a second
# or more. With FAR all of them run once more on a device whose memory the host cannot read (tests/support/far_backend.h).
function(headwise_test name)
  if(NOT HEADWISE_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "FAR" "" "SLOW")
  set(library headwise)
  if(HEADWISE_LIBRARY)
    set(library ${HEADWISE_LIBRARY})
  endif()
  add_executable(${name}_test ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name}_test PRIVATE ${library} headwise_private headwise_test_support GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE HEADWISE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                                  HEADWISE_SANITIZED=${HEADWISE_SANITIZED})
  include(GoogleTest)
  set(common TEST_PREFIX ${name}/ DISCOVERY_TIMEOUT 60
             PROPERTIES TIMEOUT ${HEADWISE_TEST_SECONDS} ENVIRONMENT ${HEADWISE_TEST_ENVIRONMENT})
  list(JOIN arg_SLOW : slow)
  if(slow)
    gtest_discover_tests(${name}_test TEST_FILTER ${slow} TEST_LIST ${name}_slow_tests ${common})
    gtest_discover_tests(${name}_test TEST_FILTER -${slow} ${common} LABELS quick)
  else()
    gtest_discover_tests(${name}_test ${common} LABELS quick)
  endif()
  if(arg_FAR)
    gtest_discover_tests(${name}_test TEST_PREFIX far_${name}/ TEST_LIST ${name}_far_tests DISCOVERY_TIMEOUT 60
                         PROPERTIES TIMEOUT ${HEADWISE_TEST_SECONDS}
                                    ENVIRONMENT "HEADWISE_TEST_DEVICE=far;${HEADWISE_TEST_ENVIRONMENT}")
  endif()
endfunction()

# What every one of our own targets is compiled with; not passed on to users of the installed library.
add_library(headwise_private INTERFACE)
target_include_directories(headwise_private INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
target_compile_options(headwise_private INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual>")
if(HEADWISE_WARNINGS_AS_ERRORS)
  target_compile_options(headwise_private INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(HEADWISE_BUILD_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage of the library's own branches
endif()
if(HEADWISE_SANITIZE)
  add_compile_options(-fsanitize=${HEADWISE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HEADWISE_SANITIZE})
  # GCC's flow analysis loses its way in instrumented code (in std::regex, for one) and warns of what is not there; and
  # of loops that are gone before it can unroll them, which has no name to be switched off by.
  target_compile_options(headwise_private INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-error>)
endif()
