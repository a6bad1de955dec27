//! The entry of every exported function that is given pointers: [`export!`] turns C arguments into types that
//! safe code can use.
//!
//! # Safety
//!
//! Each function that [`export!`] makes has the same contract, which is that of libibverbs, librdmacm and
//! libibumad. A program may call it with
//!
//! - a pointer to an object ([`Object`]) that is NULL, or that a call of this library returned for an object
//!   of this type. The object may be destroyed already: its handle is never freed (see [`crate::handle`]);
//! - a pointer to a structure ([`Ptr`], [`ConstPtr`]) that is NULL, or readable, and writable where the call
//!   writes, during the call. Its address need not be aligned. Pointers inside such a structure follow these
//!   rules as well;
//! - a pointer to a C string ([`Text`]) that is NULL, or ends with a NUL and is not changed during the call;
//! - a pointer to a socket address that is NULL, or readable for as long as its family needs;
//! - an array or a buffer that is NULL, or as long as the argument says that tells its length.
//!
//! Bodies of exported functions are safe code but for lengths, which only they know.

use std::ffi::CStr;
use std::marker::PhantomData;

use core::ffi::{c_char, c_void};

use ferroce_host::latest::Reader;

use crate::call::{Owner, Scope};
use crate::errno::Errno;
use crate::handle::{Handle, Live, Structure};

/// The type of an argument, made from what C passes. Nothing is checked yet: bodies check in the order of
/// their man page.
pub trait FromC {
    /// The type in the C prototype.
    type C;

    /// # Safety
    ///
    /// `c` is an argument of a call that keeps to the contract of this module.
    unsafe fn from_c(c: Self::C) -> Self;
}

macro_rules! as_they_are {
    ($($type:ty),* $(,)?) => {
        $(impl FromC for $type {
            type C = Self;

            #[inline(always)]
            unsafe fn from_c(c: Self) -> Self {
                c
            }
        })*
    };
}

// Pointers among them are never followed, or only where the length is known.
as_they_are!(u8, u16, u32, u64, usize, i32, i64, *mut c_void, *const c_void, *mut ferroce_abi::ibv_device);

/// A program's pointer, kept as it is whatever it points to.
macro_rules! pointers {
    ($($name:ident = $c:ty, |$pointer:ident| $kept:expr;)*) => {
        $(
            impl<T> Clone for $name<T> {
                #[inline(always)]
                fn clone(&self) -> Self {
                    *self
                }
            }

            impl<T> Copy for $name<T> {}

            impl<T> FromC for $name<T> {
                type C = $c;

                #[inline(always)]
                unsafe fn from_c($pointer: $c) -> Self {
                    Self($kept)
                }
            }
        )*
    };
}

pointers! {
    Object = *mut T, |c| c;
    Ptr = *mut T, |c| c;
    ConstPtr = *const T, |c| Ptr(c.cast_mut());
}

/// A C structure that stands for an object of this library: programs hold pointers to it.
pub(crate) trait CObject: 'static {
    /// The structure that begins the handle; a member of it, or its head, is `Self`.
    type Whole: 'static;
    type Live: Send + Sync + 'static;
    type Extra: 'static;
    /// Offset of `Self` in `Whole`, in octets.
    const OFFSET: usize = 0;
}

/// The handle of an object of C type `T`.
pub(crate) type HandleOf<T> = Handle<<T as CObject>::Whole, <T as CObject>::Live, <T as CObject>::Extra>;

/// A program's pointer to an object, or NULL.
pub struct Object<T>(*mut T);

#[expect(private_bounds, reason = "only exported functions name the type outside of the crate")]
impl<T: CObject> Object<T> {
    pub(crate) const NULL: Self = Self(std::ptr::null_mut());

    /// The pointer as the program has it.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The handle; EINVAL for NULL and for an address that cannot be one.
    #[inline(always)]
    pub(crate) fn handle(self) -> Result<&'static HandleOf<T>, Errno> {
        if self.0.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the contract of this module: the pointer came from a handle of this type, at this distance
        // from its start.
        unsafe { Handle::from_c(self.0.wrapping_byte_sub(T::OFFSET)) }
    }

    /// The live object and its handle, its context entered into `owner`: EINVAL if it was destroyed, EIO if
    /// the context cannot be used.
    pub(crate) fn enter(self, owner: &Owner) -> Result<(&'static HandleOf<T>, Live<T::Live>), Errno>
    where
        T::Live: InContext,
    {
        let handle = self.handle()?;
        let live = handle.live()?;
        owner.is(live.context())?;
        Ok((handle, live))
    }

    /// As [`Self::enter`], for as long as the thread reads: for calls that post and poll.
    #[inline(always)]
    pub(crate) fn look<'a>(self, owner: &Owner, reader: &'a Reader) -> Result<&'a T::Live, Errno>
    where
        T::Live: InContext,
    {
        let live = self.handle()?.read(reader)?;
        owner.is(live.context())?;
        Ok(live)
    }
}

/// An object that lives in a context.
pub(crate) trait InContext {
    type Context: Scope;

    fn context(&self) -> &'static Self::Context;
}

/// A program's pointer to a structure, or NULL.
pub struct Ptr<T>(*mut T);

impl<T> Ptr<T> {
    /// The pointer as the program has it.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut T {
        self.0
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T: Copy> Ptr<T> {
    #[cfg(test)]
    pub(crate) const NULL: Self = Self(std::ptr::null_mut());

    /// The structure, if the pointer is not NULL.
    #[inline(always)]
    pub(crate) fn lent(self) -> Option<Lent<T>> {
        if self.0.is_null() { None } else { Some(Lent(self.0, PhantomData)) }
    }

    /// The structure; EINVAL for NULL.
    #[inline(always)]
    pub(crate) fn some(self) -> Result<Lent<T>, Errno> {
        self.lent().ok_or(Errno::EINVAL)
    }

    /// A copy of the structure; EINVAL for NULL.
    #[inline(always)]
    pub(crate) fn read(self) -> Result<T, Errno> {
        Ok(self.some()?.read())
    }
}

impl<T: Copy> Ptr<T> {
    /// The elements of an array; EINVAL for NULL, unless there are none.
    ///
    /// # Safety
    ///
    /// The array is `length` elements long, as the contract of the call has it.
    #[inline(always)]
    pub(crate) unsafe fn array(self, length: usize) -> Result<Array<T>, Errno> {
        if self.0.is_null() && length > 0 { Err(Errno::EINVAL) } else { Ok(Array { first: self.0, length }) }
    }
}

/// A program's array, for the time of a call, at any address.
pub(crate) struct Array<T> {
    first: *mut T,
    length: usize,
}

impl<T: Copy> Array<T> {
    #[inline(always)]
    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.length, "an index beyond a program's array");
        self.first.wrapping_add(index)
    }

    #[inline(always)]
    pub(crate) fn read(&self, index: usize) -> T {
        // SAFETY: within the array, see `Ptr::array`.
        unsafe { self.at(index).read_unaligned() }
    }

    #[inline(always)]
    pub(crate) fn write(&self, index: usize, value: T) {
        // SAFETY: within the array, see `Ptr::array`.
        unsafe { self.at(index).write_unaligned(value) }
    }
}

/// As [`Ptr`], for structures that no call writes to.
pub struct ConstPtr<T>(Ptr<T>);

impl<T: Copy> ConstPtr<T> {
    #[cfg(test)]
    pub(crate) const NULL: Self = Self(Ptr::NULL);

    /// The pointer as the program has it.
    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *const T {
        self.0.as_ptr()
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// A copy of the structure; EINVAL for NULL.
    #[inline(always)]
    pub(crate) fn read(self) -> Result<T, Errno> {
        self.0.read()
    }
}

/// A program's structure, for the time of a call. Members are read and written by the macros `get` and `set`.
pub(crate) struct Lent<T>(*mut T, PhantomData<*mut T>);

// SAFETY: the program lends the whole structure for the call.
unsafe impl<T> Structure for Lent<T> {
    type C = T;

    #[inline(always)]
    fn c(&self) -> *mut T {
        self.0
    }
}

impl<T: Copy> Lent<T> {
    /// A copy of the structure.
    #[inline(always)]
    pub(crate) fn read(&self) -> T {
        // SAFETY: the contract of this module: not NULL, so readable at any address.
        unsafe { self.0.read_unaligned() }
    }

    /// Writes the whole structure.
    #[inline(always)]
    pub(crate) fn write(&self, value: T) {
        // SAFETY: the contract of this module: not NULL, so writable at any address.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// A program's C string, or NULL.
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl FromC for Text {
    type C = *const c_char;

    #[inline(always)]
    unsafe fn from_c(c: *const c_char) -> Self {
        Self(c)
    }
}

impl Text {
    /// The string, `None` for NULL.
    pub(crate) fn get<'a>(self) -> Option<&'a CStr> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the contract of this module: not NULL, so it ends with a NUL and stays as it is during the
        // call.
        Some(unsafe { CStr::from_ptr(self.0) })
    }
}

/// The object that a member of a program's structure names: `named!(attr.pd)`, where `attr` is a copy of a
/// structure that the program gave, or a reference to it. `named!(const hints.ai_src_addr)` is a pointer to a
/// structure that is only read.
macro_rules! named {
    (const $structure:ident . $($member:ident).+) => {{
        let pointer = $structure.$($member).+.cast_const();
        // SAFETY: pointers inside a program's structures follow the contract of `entry`, as arguments do.
        let place: $crate::entry::ConstPtr<_> = unsafe { $crate::entry::FromC::from_c(pointer) };
        place
    }};
    ($structure:ident $(. $member:ident)*) => {{
        let pointer: *mut _ = $structure $(. $member)*;
        // SAFETY: pointers inside a program's structures follow the contract of `entry`, as arguments do.
        let object: $crate::entry::Object<_> = unsafe { $crate::entry::FromC::from_c(pointer) };
        object
    }};
}
pub(crate) use named;

/// Makes functions for C programs from safe bodies.
/// `fn name(argument: Type) -> Return = convention |owner| { body }` runs the body by a convention of
/// [`crate::call`] or [`crate::wait`]; without a convention the body itself returns what the program gets.
/// `waiting` functions are cancellation points. A function with a convention is judged by the plan of faults
/// if `Verb::at_entry` has its name. Their contract is that of the [module](crate::entry).
macro_rules! export {
    () => {};
    ($(#[$meta:meta])* $vis:vis waiting fn $($rest:tt)*) => {
        $crate::entry::export! { @ "C-unwind" [$(#[$meta])*] [$vis] $($rest)* }
    };
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => {
        $crate::entry::export! { @ "C" [$(#[$meta])*] [$vis] $($rest)* }
    };
    (@ $abi:literal [$(#[$meta:meta])*] [$vis:vis] $name:ident($($argument:ident: $type:ty),* $(,)?)
        -> $return:ty = $convention:path | $($parameter:pat_param),* | $body:block $($rest:tt)*) => {
        $crate::entry::export! {
            @ $abi [$(#[$meta])*] [$vis] $name($($argument: $type),*) -> $return {
                let mut judged = false;
                $convention(|$($parameter),*| {
                    const VERB: Option<ferroce_engine::faults::Verb> =
                        ferroce_engine::faults::Verb::at_entry(stringify!($name));
                    if let Some(verb) = VERB {
                        $crate::errno::judged_once(verb, &mut judged)?;
                    }
                    $body
                })
            }
        }
        $crate::entry::export! { $($rest)* }
    };
    (@ $abi:literal [$(#[$meta:meta])*] [$vis:vis] $name:ident($($argument:ident: $type:ty),* $(,)?)
        -> $return:ty $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[allow(clippy::missing_safety_doc, reason = "the contract of all is in `entry`")]
        $vis unsafe extern $abi fn $name(
            $($argument: <$type as $crate::entry::FromC>::C),*
        ) -> $return {
            // SAFETY: the caller keeps to the contract of `entry`.
            $(let $argument = unsafe { <$type as $crate::entry::FromC>::from_c($argument) };)*
            $body
        }
        $crate::entry::export! { $($rest)* }
    };
}
pub(crate) use export;
