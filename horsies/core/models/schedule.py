"""Schedules and their patterns, under their documented import path."""

from horsies.schedule.cron import BothDays as BothDays
from horsies.schedule.cron import ByMonthDay as ByMonthDay
from horsies.schedule.cron import ByWeekday as ByWeekday
from horsies.schedule.cron import CronEnumRange as CronEnumRange
from horsies.schedule.cron import CronEnumStep as CronEnumStep
from horsies.schedule.cron import CronEnumValues as CronEnumValues
from horsies.schedule.cron import CronEvery as CronEvery
from horsies.schedule.cron import CronRange as CronRange
from horsies.schedule.cron import CronStep as CronStep
from horsies.schedule.cron import CronValues as CronValues
from horsies.schedule.cron import DaySelector as DaySelector
from horsies.schedule.cron import EitherDay as EitherDay
from horsies.schedule.cron import EveryDay as EveryDay
from horsies.schedule.cron import Month as Month
from horsies.schedule.cron import Weekday as Weekday
from horsies.schedule.model import ScheduleConfig as ScheduleConfig
from horsies.schedule.model import TaskSchedule as TaskSchedule
from horsies.schedule.patterns import CronSchedule as CronSchedule
from horsies.schedule.patterns import DailySchedule as DailySchedule
from horsies.schedule.patterns import HourlySchedule as HourlySchedule
from horsies.schedule.patterns import IntervalSchedule as IntervalSchedule
from horsies.schedule.patterns import MonthlySchedule as MonthlySchedule
from horsies.schedule.patterns import SchedulePattern as SchedulePattern
from horsies.schedule.patterns import WeeklySchedule as WeeklySchedule
