"""Schedules and their patterns, under their documented import path."""

from horsies.schedule.model import ScheduleConfig as ScheduleConfig
from horsies.schedule.model import TaskSchedule as TaskSchedule
from horsies.schedule.patterns import BothDays as BothDays
from horsies.schedule.patterns import ByMonthDay as ByMonthDay
from horsies.schedule.patterns import ByWeekday as ByWeekday
from horsies.schedule.patterns import CronEnumRange as CronEnumRange
from horsies.schedule.patterns import CronEnumStep as CronEnumStep
from horsies.schedule.patterns import CronEnumValues as CronEnumValues
from horsies.schedule.patterns import CronEvery as CronEvery
from horsies.schedule.patterns import CronRange as CronRange
from horsies.schedule.patterns import CronSchedule as CronSchedule
from horsies.schedule.patterns import CronStep as CronStep
from horsies.schedule.patterns import CronValues as CronValues
from horsies.schedule.patterns import DailySchedule as DailySchedule
from horsies.schedule.patterns import DaySelector as DaySelector
from horsies.schedule.patterns import EitherDay as EitherDay
from horsies.schedule.patterns import EveryDay as EveryDay
from horsies.schedule.patterns import HourlySchedule as HourlySchedule
from horsies.schedule.patterns import IntervalSchedule as IntervalSchedule
from horsies.schedule.patterns import Month as Month
from horsies.schedule.patterns import MonthlySchedule as MonthlySchedule
from horsies.schedule.patterns import SchedulePattern as SchedulePattern
from horsies.schedule.patterns import Weekday as Weekday
from horsies.schedule.patterns import WeeklySchedule as WeeklySchedule
